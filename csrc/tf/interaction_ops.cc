// DembDotInteraction and its gradient: a list of vectors in, the top network's input out.
#include <vector>

#include "../core/interaction.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tf_executor.h"

namespace demb {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::OpInputList;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// All of inputs [begin, begin + count) merged: [batch, dim].
absl::Status merged_vectors(InferenceContext* c, int begin, int count, ShapeHandle* merged) {
  *merged = c->Matrix(InferenceContext::kUnknownDim, InferenceContext::kUnknownDim);
  for (int i = 0; i < count; ++i) TF_RETURN_IF_ERROR(c->Merge(c->input(begin + i), *merged, merged));
  return absl::OkStatus();
}

absl::Status forward_shape(InferenceContext* c) {
  int count;
  bool keep_first;
  TF_RETURN_IF_ERROR(c->GetAttr("count", &count));
  TF_RETURN_IF_ERROR(c->GetAttr("keep_first", &keep_first));
  ShapeHandle vectors;
  TF_RETURN_IF_ERROR(merged_vectors(c, 0, count, &vectors));
  DimensionHandle width = c->MakeDim(static_cast<int64_t>(count) * (count - 1) / 2);
  if (keep_first) TF_RETURN_IF_ERROR(c->Add(width, c->Dim(vectors, 1), &width));
  c->set_output(0, c->Matrix(c->Dim(vectors, 0), width));
  return absl::OkStatus();
}

absl::Status gradient_shape(InferenceContext* c) {
  int count;
  TF_RETURN_IF_ERROR(c->GetAttr("count", &count));
  ShapeHandle vectors;
  TF_RETURN_IF_ERROR(merged_vectors(c, 1, count, &vectors));
  for (int i = 0; i < count; ++i) c->set_output(i, vectors);
  return absl::OkStatus();
}

// What both kernels share: the list of vectors, checked.
class InteractionOp : public OpKernel {
 public:
  explicit InteractionOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("keep_first", &keep_first_));
  }

 protected:
  absl::Status read(OpKernelContext* ctx, InteractionShape* shape, std::vector<const float*>* vectors) const {
    OpInputList list;
    TF_RETURN_IF_ERROR(ctx->input_list("vectors", &list));
    const TensorShape& first = list[0].shape();
    for (int i = 0; i < list.size(); ++i) {
      if (list[i].dims() != 2 || list[i].shape() != first) {
        return absl::InvalidArgumentError(absl::StrCat(
            "`vectors` must all be [batch, dim], alike. Received: vectors[0] of shape ", first.DebugString(),
            ", vectors[", i, "] of shape ", list[i].shape().DebugString()));
      }
      vectors->push_back(list[i].flat<float>().data());
    }
    *shape = {first.dim_size(0), list.size(), first.dim_size(1), keep_first_};
    return absl::OkStatus();
  }

 private:
  bool keep_first_;
};

class DotInteractionOp final : public InteractionOp {
 public:
  using InteractionOp::InteractionOp;

  void Compute(OpKernelContext* ctx) override {
    InteractionShape shape;
    std::vector<const float*> vectors;
    OP_REQUIRES_OK(ctx, read(ctx, &shape, &vectors));
    Tensor* out = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, TensorShape({shape.batch, shape.width()}), &out));
    if (out->NumElements() == 0) return;
    interact(shape, vectors.data(), out->flat<float>().data(), TfExecutor(ctx));
  }
};

class DotInteractionGradOp final : public InteractionOp {
 public:
  using InteractionOp::InteractionOp;

  void Compute(OpKernelContext* ctx) override {
    InteractionShape shape;
    std::vector<const float*> vectors;
    OP_REQUIRES_OK(ctx, read(ctx, &shape, &vectors));
    const Tensor& upstream = ctx->input(0);
    const TensorShape wanted({shape.batch, shape.width()});
    OP_REQUIRES(ctx, upstream.shape() == wanted,
                absl::InvalidArgumentError(absl::StrCat("`upstream` must be of shape ", wanted.DebugString(),
                                                        ". Received: shape ", upstream.shape().DebugString())));
    std::vector<float*> gradients;
    for (int i = 0; i < shape.count; ++i) {
      Tensor* gradient = nullptr;
      OP_REQUIRES_OK(ctx, ctx->allocate_output(i, TensorShape({shape.batch, shape.dim}), &gradient));
      gradients.push_back(gradient->flat<float>().data());
    }
    if (shape.batch == 0 || shape.dim == 0) return;
    interact_gradient(shape, upstream.flat<float>().data(), vectors.data(), gradients.data(), TfExecutor(ctx));
  }
};

REGISTER_OP("DembDotInteraction")
    .Input("vectors: count * float")
    .Output("out: float")
    .Attr("count: int >= 1")
    .Attr("keep_first: bool")
    .SetShapeFn(forward_shape);

REGISTER_OP("DembDotInteractionGrad")
    .Input("upstream: float")
    .Input("vectors: count * float")
    .Output("gradients: count * float")
    .Attr("count: int >= 1")
    .Attr("keep_first: bool")
    .SetShapeFn(gradient_shape);

REGISTER_KERNEL_BUILDER(Name("DembDotInteraction").Device(tensorflow::DEVICE_CPU), DotInteractionOp);
REGISTER_KERNEL_BUILDER(Name("DembDotInteractionGrad").Device(tensorflow::DEVICE_CPU), DotInteractionGradOp);

}  // namespace
}  // namespace demb
