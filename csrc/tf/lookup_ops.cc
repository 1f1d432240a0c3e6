// DembLookup: the vectors of all features out of all tables; and the gradients of weights.
#include <string>
#include <vector>

#include "../core/lookup.h"
#include "../core/weights_gradient.h"
#include "absl/status/status.h"
#include "features.h"
#include "invalid_text.h"
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

// The tables and features of a kernel whose first inputs are the tables' handles.
class FeatureTables {
 public:
  absl::Status init(OpKernelConstruction* ctx, const OpKernel& kernel) {
    int handles;
    TF_RETURN_IF_ERROR(ctx->GetAttr("num_tables", &handles));
    TF_RETURN_IF_ERROR(ctx->GetAttr("dims", &dims));
    if (dims.size() != static_cast<size_t>(handles)) return absl::InvalidArgumentError("`dims` must have one entry a table");
    return features.init(ctx, kernel, dims.size());
  }
  absl::Status open(OpKernelContext* ctx, LockedVariables* variables, std::vector<Table>* tables) const {
    const int count = static_cast<int>(dims.size());
    TF_RETURN_IF_ERROR(variables->open(ctx, 0, count, Access::kRead));
    tables->resize(dims.size());
    for (int t = 0; t < count; ++t) TF_RETURN_IF_ERROR(variables->table(t, dims[t], &(*tables)[t]));
    return absl::OkStatus();
  }
  FeatureAttrs features;
  std::vector<int64_t> dims;
};

class LookupOp final : public OpKernel {
 public:
  explicit LookupOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, inputs_.init(ctx, *this));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("feature_names", &feature_names_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("table_names", &table_names_));
    OP_REQUIRES(ctx, static_cast<int>(feature_names_.size()) == inputs_.features.count() &&
                         table_names_.size() == inputs_.dims.size(),
                absl::InvalidArgumentError("there must be a name for every feature and table"));
  }

  void Compute(OpKernelContext* ctx) override {
    const FeatureAttrs& features = inputs_.features;
    LockedVariables variables;
    std::vector<Table> tables;
    std::vector<Bags> bags;
    OP_REQUIRES_OK(ctx, inputs_.open(ctx, &variables, &tables));
    OP_REQUIRES_OK(ctx, features.bags(ctx, &bags));
    std::vector<int64_t> batch_sizes;
    bool agree = true;
    for (int f = 0; f < features.count(); ++f) {
      batch_sizes.push_back(features.batch_size(ctx, f));
      agree &= batch_sizes[f] == batch_sizes[0];
    }
    OP_REQUIRES(ctx, agree, absl::InvalidArgumentError(batch_sizes_text(feature_names_, batch_sizes)));
    std::vector<LookupJob> jobs;
    std::vector<InvalidReport> reports(bags.size());
    for (int f = 0; f < features.count(); ++f) {
      const Table& table = tables[features.table_of[f]];
      Tensor* out = nullptr;
      OP_REQUIRES_OK(ctx, allocate_pooled(ctx, f, features.output_shape(ctx, f, table.dim), &out));
      jobs.push_back({table, bags[f], out->flat<float>().data(), table.dim, &reports[f]});
    }
    look_up(jobs.data(), static_cast<int64_t>(jobs.size()), features.invalid_ids, TfExecutor(ctx));
    finish(ctx, tables, bags, reports);
  }

 private:
  void finish(OpKernelContext* ctx, const std::vector<Table>& tables, const std::vector<Bags>& bags,
              const std::vector<InvalidReport>& reports) const {
    const FeatureAttrs& features = inputs_.features;
    Tensor* counts = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(features.count(), TensorShape({features.count()}), &counts));
    int64_t total = 0;
    int first = -1;
    for (int f = 0; f < features.count(); ++f) {
      const int64_t count = reports[f].count.load();
      counts->vec<int64_t>()(f) = count;
      total += count;
      if (count > 0 && first < 0) first = f;
    }
    if (total == 0 || features.invalid_ids != InvalidIds::kRaise) return;
    const int table = features.table_of[first];
    const int64_t at = reports[first].first.load();
    ctx->SetStatus(absl::InvalidArgumentError(
        invalid_text(feature_names_[first], table_names_[table], bags[first].id(at), tables[table].num_rows,
                     features.batch_row(ctx, first, at), total)));
  }

  FeatureTables inputs_;
  std::vector<std::string> feature_names_, table_names_;
};

// Gradients of the per-id weights, in the order of the weights.
class WeightsGradientOp final : public OpKernel {
 public:
  explicit WeightsGradientOp(OpKernelConstruction* ctx) : OpKernel(ctx) { OP_REQUIRES_OK(ctx, inputs_.init(ctx, *this)); }

  void Compute(OpKernelContext* ctx) override {
    const FeatureAttrs& features = inputs_.features;
    LockedVariables variables;
    std::vector<Table> tables;
    std::vector<Bags> bags;
    OP_REQUIRES_OK(ctx, inputs_.open(ctx, &variables, &tables));
    OP_REQUIRES_OK(ctx, features.bags(ctx, &bags));
    tensorflow::OpInputList grads, weights;
    OP_REQUIRES_OK(ctx, ctx->input_list("grads", &grads));
    OP_REQUIRES_OK(ctx, ctx->input_list("weights", &weights));
    std::vector<WeightsJob> jobs;
    for (int f = 0; f < features.count(); ++f) {
      if (features.weights_of[f] < 0) continue;
      const Table& table = tables[features.table_of[f]];
      OP_REQUIRES(ctx, grads[f].NumElements() == bags[f].num_bags * table.dim,
                  absl::InvalidArgumentError("the gradient must have the shape of the output"));
      Tensor* out = nullptr;
      const int w = features.weights_of[f];
      OP_REQUIRES_OK(ctx, ctx->allocate_output(w, weights[w].shape(), &out));
      jobs.push_back({table, bags[f], grads[f].flat<float>().data(), table.dim, out->flat<float>().data()});
    }
    weights_gradient(jobs.data(), static_cast<int64_t>(jobs.size()), features.invalid_ids, TfExecutor(ctx));
  }

 private:
  FeatureTables inputs_;
};

REGISTER_OP("DembLookup")
    .Input("handles: num_tables * resource")
    .DEMB_FEATURE_INPUTS()
    .Output("vectors: num_features * float")
    .Output("invalid: int64")
    .Attr("num_tables: int >= 1")
    .Attr("num_features: int >= 1")
    .Attr("num_rows: list(int)")  // for the gradient
    .Attr("dims: list(int)")
    .Attr("feature_names: list(string)")
    .Attr("table_names: list(string)")
    .DEMB_FEATURE_ATTRS()
    .SetShapeFn([](InferenceContext* c) {
      std::vector<int64_t> dims;
      int tables, features;
      TF_RETURN_IF_ERROR(c->GetAttr("dims", &dims));
      TF_RETURN_IF_ERROR(c->GetAttr("num_tables", &tables));
      TF_RETURN_IF_ERROR(c->GetAttr("num_features", &features));
      c->set_output(features, c->Vector(features));
      return infer_feature_outputs(c, tables, dims);
    });

REGISTER_OP("DembWeightsGradient")
    .Input("handles: num_tables * resource")
    .DEMB_FEATURE_INPUTS()
    .Input("grads: num_features * float")
    .Output("weights_grads: num_weighted * float")
    .Attr("num_tables: int >= 1")
    .Attr("num_features: int >= 1")
    .Attr("dims: list(int)")
    .DEMB_FEATURE_ATTRS()
    .SetShapeFn([](InferenceContext* c) {
      std::vector<tensorflow::shape_inference::ShapeHandle> weights;
      TF_RETURN_IF_ERROR(c->input("weights", &weights));
      for (size_t w = 0; w < weights.size(); ++w) c->set_output(static_cast<int>(w), weights[w]);
      return absl::OkStatus();
    });

REGISTER_KERNEL_BUILDER(Name("DembLookup").Device(tensorflow::DEVICE_CPU), LookupOp);
REGISTER_KERNEL_BUILDER(Name("DembWeightsGradient").Device(tensorflow::DEVICE_CPU), WeightsGradientOp);

}  // namespace
}  // namespace demb
