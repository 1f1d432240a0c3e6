// DembCompact: out of vectors by lane those whose mark is the wanted one. DembSpread: back to where they were.
#include <cstring>
#include <vector>

#include "../core/conflict.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "pool_tensor.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tf_executor.h"
#include "wire_rows.h"

namespace demb {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::shape_inference::InferenceContext;

// Inputs: vectors, mask, lane_rows.
class MarkedLanesOp : public OpKernel {
 protected:
  explicit MarkedLanesOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("widths", &widths_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("conflicting", &wanted_));
    for (int64_t width : widths_) {
      OP_REQUIRES(ctx, width >= 1 && width < (int64_t{1} << 31),
                  absl::InvalidArgumentError(absl::StrCat("`widths` must be at least 1. Received: ", width)));
    }
  }

  // elements: of the vectors of all rows.
  absl::Status read(OpKernelContext* ctx, MarkedLanes* lanes, int64_t* elements) const {
    const Tensor &mask = ctx->input(1), &rows = ctx->input(2);
    const int64_t count = static_cast<int64_t>(widths_.size());
    if (rows.dims() != 1 || rows.NumElements() != count) {
      return absl::InvalidArgumentError(absl::StrCat("`lane_rows` must be of shape [", count,
                                                     "], one number a lane of `widths`. Received: shape ",
                                                     rows.shape().DebugString()));
    }
    *lanes = {mask.flat<bool>().data(), wanted_, rows.flat<int64_t>().data(), widths_.data(), count};
    TF_RETURN_IF_ERROR(check_sizes_add_up(lanes->rows, count, mask.NumElements(), "lane_rows", "`mask`"));
    *elements = 0;
    for (int64_t l = 0; l < count; ++l) *elements += lanes->rows[l] * widths_[l];
    return absl::OkStatus();
  }

  static absl::Status check_elements(const Tensor& tensor, const char* name, int64_t elements, const char* why) {
    if (tensor.NumElements() == elements) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("`", name, "` must have ", elements, " elements, ", why,
                                                   ". Received: shape ", tensor.shape().DebugString()));
  }

  std::vector<int64_t> widths_;
  bool wanted_ = true;
};

class CompactOp final : public MarkedLanesOp {
 public:
  explicit CompactOp(OpKernelConstruction* ctx) : MarkedLanesOp(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("lane_ranks", &lane_ranks_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_ranks", &num_ranks_));
    OP_REQUIRES(ctx, lane_ranks_.size() == widths_.size(),
                absl::InvalidArgumentError(absl::StrCat("`lane_ranks` must have one rank a lane of `widths`. Received: ",
                                                        lane_ranks_.size(), " ranks, ", widths_.size(), " widths")));
    for (int64_t rank : lane_ranks_) {
      OP_REQUIRES(ctx, rank >= 0 && rank < num_ranks_,
                  absl::InvalidArgumentError(absl::StrCat("`lane_ranks` must lie in [0, ", num_ranks_, "). Received: ", rank)));
    }
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor& vectors = ctx->input(0);
    MarkedLanes lanes;
    int64_t elements, part = 0;
    OP_REQUIRES_OK(ctx, read(ctx, &lanes, &elements));
    OP_REQUIRES_OK(ctx, check_elements(vectors, "vectors", elements, "those of all rows"));
    std::vector<int64_t> floats(widths_.size());
    part_floats(lanes, floats.data());
    Tensor *out = nullptr, *splits = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, TensorShape({num_ranks_}), &splits));
    splits->vec<int64_t>().setZero();
    for (size_t l = 0; l < floats.size(); ++l) {
      splits->vec<int64_t>()(lane_ranks_[l]) += floats[l];
      part += floats[l];
    }
    OP_REQUIRES_OK(ctx, allocate_pooled(ctx, 0, TensorShape({part}), &out));
    compact(lanes, vectors.flat<float>().data(), out->flat<float>().data(), TfExecutor(ctx));
  }

 private:
  std::vector<int64_t> lane_ranks_;
  int64_t num_ranks_ = 0;
};

// Input 3: `into`, where there is one.
class SpreadOp final : public MarkedLanesOp {
 public:
  explicit SpreadOp(OpKernelConstruction* ctx) : MarkedLanesOp(ctx) {}

  void Compute(OpKernelContext* ctx) override {
    const Tensor& part = ctx->input(0);
    MarkedLanes lanes;
    int64_t elements, wanted = 0;
    OP_REQUIRES_OK(ctx, read(ctx, &lanes, &elements));
    std::vector<int64_t> floats(widths_.size());
    part_floats(lanes, floats.data());
    for (int64_t n : floats) wanted += n;
    OP_REQUIRES_OK(ctx, check_elements(part, "part", wanted, "those of the rows whose mask is `conflicting`"));
    Tensor* out = nullptr;
    OP_REQUIRES_OK(ctx, output(ctx, elements, &out));
    spread(lanes, part.flat<float>().data(), out->flat<float>().data(), TfExecutor(ctx));
  }

 private:
  // The rows of the other kind are there already, or may be anything.
  static absl::Status output(OpKernelContext* ctx, int64_t elements, Tensor** out) {
    const TensorShape shape({elements});
    if (ctx->num_inputs() == 3) return allocate_pooled(ctx, 0, shape, out);
    TF_RETURN_IF_ERROR(check_elements(ctx->input(3), "into", elements, "those of all rows"));
    // In its own memory where nobody else holds it.
    if (ctx->forward_input_to_output_with_shape(3, 0, shape, out)) return absl::OkStatus();
    TF_RETURN_IF_ERROR(allocate_pooled(ctx, 0, shape, out));
    if (elements > 0) std::memcpy((*out)->data(), ctx->input(3).data(), (*out)->TotalBytes());
    return absl::OkStatus();
  }
};

REGISTER_OP("DembCompact")
    .Input("vectors: float")
    .Input("mask: bool")
    .Input("lane_rows: int64")
    .Output("part: float")
    .Output("splits: int64")
    .Attr("widths: list(int)")
    .Attr("lane_ranks: list(int)")
    .Attr("num_ranks: int >= 0")
    .Attr("conflicting: bool")
    .SetShapeFn([](InferenceContext* c) {
      int ranks;
      TF_RETURN_IF_ERROR(c->GetAttr("num_ranks", &ranks));
      c->set_output(0, c->Vector(InferenceContext::kUnknownDim));
      c->set_output(1, c->Vector(ranks));
      return absl::OkStatus();
    });

REGISTER_OP("DembSpread")
    .Input("part: float")
    .Input("mask: bool")
    .Input("lane_rows: int64")
    .Input("into: num_into * float")
    .Output("vectors: float")
    .Attr("num_into: int >= 0")
    .Attr("widths: list(int)")
    .Attr("conflicting: bool")
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->num_inputs() == 4 ? c->input(3) : c->Vector(InferenceContext::kUnknownDim));
      return absl::OkStatus();
    });

REGISTER_KERNEL_BUILDER(Name("DembCompact").Device(tensorflow::DEVICE_CPU), CompactOp);
REGISTER_KERNEL_BUILDER(Name("DembSpread").Device(tensorflow::DEVICE_CPU), SpreadOp);

}  // namespace
}  // namespace demb
