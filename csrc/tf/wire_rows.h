// Two inputs of a kernel that together are rows by (source, lane): see WireRows.
#pragma once

#include <string>

#include "../core/conflict.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace demb {

// `count` numbers, none negative, that add up to `total`. what, whole: names for the error.
inline absl::Status check_sizes_add_up(const int64_t* sizes, int64_t count, int64_t total, const std::string& what,
                                       const std::string& whole) {
  int64_t left = total;
  for (int64_t i = 0; i < count; ++i) {
    if (sizes[i] < 0 || sizes[i] > left) {
      return absl::InvalidArgumentError(absl::StrCat("`", what, "` must be numbers of rows, none negative, that add up to the ",
                                                     total, " of ", whole, ". Received: ", sizes[i], " at position ", i));
    }
    left -= sizes[i];
  }
  if (left == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("`", what, "` must be numbers of rows, none negative, that add up to the ",
                                                 total, " of ", whole, ". Received: ", total - left, " in all"));
}

// Input `index` and the one behind it, whose names are `rows` and `counts`. lanes: how many there must be; -1: any number.
inline absl::Status read_wire_rows(tensorflow::OpKernelContext* ctx, int index, int64_t lanes, const std::string& rows,
                                   const std::string& counts, WireRows* to) {
  const tensorflow::Tensor &r = ctx->input(index), &c = ctx->input(index + 1);
  if (c.dims() != 2 || (lanes >= 0 && c.dim_size(1) != lanes)) {
    return absl::InvalidArgumentError(absl::StrCat("`", counts, "` must be of shape [sources, ",
                                                   lanes < 0 ? "lanes" : absl::StrCat(lanes), "]. Received: shape ",
                                                   c.shape().DebugString()));
  }
  if (r.dims() != 1) {
    return absl::InvalidArgumentError(absl::StrCat("`", rows, "` must be of shape [rows]. Received: shape ",
                                                   r.shape().DebugString()));
  }
  *to = {r.flat<int64_t>().data(), c.flat<int64_t>().data(), c.dim_size(0), c.dim_size(1)};
  return check_sizes_add_up(to->counts, c.NumElements(), r.NumElements(), counts, absl::StrCat("`", rows, "`"));
}

}  // namespace demb
