#include "lanes.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace demb {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

absl::Status LaneAttrs::init(OpKernelConstruction* ctx, const tensorflow::OpKernel& kernel) {
  int end;
  TF_RETURN_IF_ERROR(ctx->GetAttr("lane_tables", &lane_tables_));
  return kernel.InputRange("lane_rows", &rows_at_, &end);
}

absl::Status LaneAttrs::pieces(OpKernelContext* ctx, const std::vector<int64_t>& dims, std::vector<LanePiece>* pieces,
                               int64_t* elements) const {
  const Tensor& rows = ctx->input(rows_at_);
  const Tensor& counts = ctx->input(rows_at_ + 1);
  const int64_t lanes = static_cast<int64_t>(lane_tables_.size());
  if (counts.dims() != 2 || counts.dim_size(1) != lanes) {
    return absl::InvalidArgumentError(absl::StrCat("`counts` must be [sources, ", lanes, "]. Received: shape ",
                                                   counts.shape().DebugString()));
  }
  const auto count = counts.matrix<int64_t>();
  const int64_t* next = rows.flat<int64_t>().data();
  int64_t left = rows.NumElements();
  *elements = 0;
  for (int64_t s = 0; s < counts.dim_size(0); ++s) {
    for (int64_t l = 0; l < lanes; ++l) {
      const int64_t n = count(s, l);
      if (n < 0 || n > left || lane_tables_[l] < 0 || static_cast<size_t>(lane_tables_[l]) >= dims.size()) {
        return absl::InvalidArgumentError("`counts` must add up to the number of rows, and lanes name tables that are there");
      }
      LanePiece piece{static_cast<int32_t>(s), lane_tables_[l], {}, *elements};
      piece.bags.ids = next;
      piece.bags.num_ids = piece.bags.num_bags = n;
      pieces->push_back(piece);
      next += n;
      left -= n;
      *elements += n * dims[lane_tables_[l]];
    }
  }
  if (left != 0) return absl::InvalidArgumentError("`counts` must add up to the number of rows");
  return absl::OkStatus();
}

}  // namespace demb
