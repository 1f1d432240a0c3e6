// DembLookupLanes: this rank's answers to all ranks, straight into the send buffer.
#include <vector>

#include "../core/lookup.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "lanes.h"
#include "pool_tensor.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tf_executor.h"
#include "variables.h"

namespace demb {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::shape_inference::InferenceContext;

class LookupLanesOp final : public OpKernel {
 public:
  explicit LookupLanesOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, lanes_.init(ctx, *this));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("dims", &dims_));
  }

  void Compute(OpKernelContext* ctx) override {
    LockedVariables variables;
    std::vector<Table> tables(dims_.size());
    OP_REQUIRES_OK(ctx, variables.open(ctx, 0, static_cast<int>(dims_.size()), Access::kRead));
    for (size_t t = 0; t < dims_.size(); ++t) {
      OP_REQUIRES_OK(ctx, variables.table(static_cast<int>(t), dims_[t], &tables[t]));
    }
    std::vector<LanePiece> pieces;
    int64_t elements;
    OP_REQUIRES_OK(ctx, lanes_.pieces(ctx, dims_, &pieces, &elements));
    Tensor *vectors = nullptr, *splits = nullptr;
    const int64_t sources = ctx->input(lanes_.inputs_end() - 1).dim_size(0);
    OP_REQUIRES_OK(ctx, allocate_pooled(ctx, 0, TensorShape({elements}), &vectors));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, TensorShape({sources}), &splits));
    splits->vec<int64_t>().setZero();
    std::vector<LookupJob> jobs;
    InvalidReport invalid;
    for (const LanePiece& p : pieces) {
      const Table& table = tables[p.table];
      jobs.push_back({table, p.bags, vectors->flat<float>().data() + p.offset, table.dim, &invalid});
      splits->vec<int64_t>()(p.source) += p.bags.num_bags * table.dim;
    }
    look_up(jobs.data(), static_cast<int64_t>(jobs.size()), InvalidIds::kRaise, TfExecutor(ctx));
    OP_REQUIRES(ctx, invalid.count.load() == 0,
                absl::InternalError(absl::StrCat(invalid.count.load(), " rows asked of this rank are not on it")));
  }

 private:
  LaneAttrs lanes_;
  std::vector<int64_t> dims_;
};

REGISTER_OP("DembLookupLanes")
    .Input("handles: num_tables * resource")
    .DEMB_LANE_INPUTS()
    .Output("vectors: float")
    .Output("splits: int64")
    .Attr("num_tables: int >= 1")
    .Attr("num_rows: list(int)")  // for the gradient
    .Attr("dims: list(int)")
    .DEMB_LANE_ATTRS()
    .SetShapeFn([](InferenceContext* c) {
      int tables;
      TF_RETURN_IF_ERROR(c->GetAttr("num_tables", &tables));
      c->set_output(0, c->Vector(InferenceContext::kUnknownDim));
      const auto counts = c->input(tables + 1);
      c->set_output(1, c->Vector(c->RankKnown(counts) ? c->Dim(counts, 0) : c->UnknownDim()));
      return absl::OkStatus();
    });

REGISTER_KERNEL_BUILDER(Name("DembLookupLanes").Device(tensorflow::DEVICE_CPU), LookupLanesOp);

}  // namespace
}  // namespace demb
