// DembUpdateAndLookUp: DembUpdateLanes of one batch and DembLookupLanes of rows of the next in one walk along the rows.
#include <vector>

#include "../core/update_forward.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "lanes.h"
#include "pool_tensor.h"
#include "rule_attrs.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tf_executor.h"
#include "variables.h"
#include "wire_rows.h"

namespace demb {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::shape_inference::InferenceContext;

// Lane l of the next rows reads table l.
class UpdateAndLookUpOp final : public OpKernel {
 public:
  explicit UpdateAndLookUpOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("dims", &dims_));
    OP_REQUIRES_OK(ctx, rule_.init(ctx, *this, static_cast<int>(dims_.size())));
    OP_REQUIRES_OK(ctx, lanes_.init(ctx, *this));
  }

  void Compute(OpKernelContext* ctx) override {
    LockedVariables variables;
    std::vector<UpdateTarget> targets;
    OP_REQUIRES_OK(ctx, rule_.open(ctx, dims_, &variables, &targets));
    std::vector<std::vector<GradientSource>> gradients(dims_.size());
    OP_REQUIRES_OK(ctx, read_gradients(ctx, &gradients));
    std::vector<std::vector<AskedRows>> asked(dims_.size());
    OP_REQUIRES_OK(ctx, read_asked(ctx, &asked));
    std::vector<UpdateForwardJob> jobs;
    for (size_t t = 0; t < dims_.size(); ++t) {
      const TableGradient gradient{targets[t].table.num_rows, static_cast<int32_t>(dims_[t]), gradients[t].data(),
                                   static_cast<int64_t>(gradients[t].size())};
      jobs.push_back({gradient, targets[t], rule_.step(ctx, static_cast<int>(t)), asked[t].data(),
                      static_cast<int64_t>(asked[t].size())});
      OP_REQUIRES(ctx, OccurrenceSorter::supports(gradient),
                  absl::UnimplementedError("a block of a table must have fewer than 2^32 - 1 rows, and a step fewer ids of one "
                                           "table. Cut the table's rows over more workers, or the batch"));
    }
    const int64_t outside = update_forward(jobs.data(), static_cast<int64_t>(jobs.size()), TfExecutor(ctx));
    OP_REQUIRES(ctx, outside == 0, absl::InternalError(absl::StrCat(outside, " rows asked of this rank are not on it")));
  }

 private:
  absl::Status read_gradients(OpKernelContext* ctx, std::vector<std::vector<GradientSource>>* to) const {
    std::vector<LanePiece> pieces;
    int64_t elements;
    TF_RETURN_IF_ERROR(lanes_.pieces(ctx, dims_, &pieces, &elements));
    const Tensor& grads = ctx->input(lanes_.inputs_end());
    if (grads.NumElements() != elements) {
      return absl::InvalidArgumentError(absl::StrCat("the gradient must have ", elements, " elements. Received: ",
                                                     grads.NumElements()));
    }
    for (const LanePiece& p : pieces) {
      (*to)[p.table].push_back({p.bags, grads.flat<float>().data() + p.offset, dims_[p.table]});
    }
    return absl::OkStatus();
  }

  // And the outputs, to which the rows asked go.
  absl::Status read_asked(OpKernelContext* ctx, std::vector<std::vector<AskedRows>>* to) const {
    WireRows wire;
    const int64_t lanes = static_cast<int64_t>(dims_.size());
    TF_RETURN_IF_ERROR(read_wire_rows(ctx, lanes_.inputs_end() + 1, lanes, "next_rows", "next_counts", &wire));
    Tensor *vectors = nullptr, *splits = nullptr;
    TF_RETURN_IF_ERROR(ctx->allocate_output(1, TensorShape({wire.sources}), &splits));
    splits->vec<int64_t>().setZero();
    int64_t elements = 0;
    for (int64_t piece = 0; piece < wire.sources * lanes; ++piece) {
      const int64_t floats = wire.counts[piece] * dims_[piece % lanes];
      splits->vec<int64_t>()(piece / lanes) += floats;
      elements += floats;
    }
    TF_RETURN_IF_ERROR(allocate_pooled(ctx, 0, TensorShape({elements}), &vectors));
    float* out = vectors->flat<float>().data();
    for (int64_t piece = 0; piece < wire.sources * lanes; ++piece) {
      const int64_t count = wire.counts[piece];
      (*to)[piece % lanes].push_back({wire.rows, count, out});
      wire.rows += count;
      out += count * dims_[piece % lanes];
    }
    return absl::OkStatus();
  }

  std::vector<int64_t> dims_;
  RuleAttrs rule_;
  LaneAttrs lanes_;
};

REGISTER_OP("DembUpdateAndLookUp")
    .Input("handles: num_tables * resource")
    .DEMB_RULE_INPUTS()
    .DEMB_LANE_INPUTS()
    .Input("grads: float")
    .Input("next_rows: int64")
    .Input("next_counts: int64")
    .Output("vectors: float")
    .Output("splits: int64")
    .Attr("num_tables: int >= 1")
    .Attr("dims: list(int)")
    .DEMB_RULE_ATTRS()
    .DEMB_LANE_ATTRS()
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Vector(InferenceContext::kUnknownDim));
      const auto counts = c->input(c->num_inputs() - 1);
      c->set_output(1, c->Vector(c->RankKnown(counts) && c->Rank(counts) > 0 ? c->Dim(counts, 0) : c->UnknownDim()));
      return absl::OkStatus();
    });

REGISTER_KERNEL_BUILDER(Name("DembUpdateAndLookUp").Device(tensorflow::DEVICE_CPU), UpdateAndLookUpOp);

}  // namespace
}  // namespace demb
