// The features of a grouped op: ids in the form in which users give them, as core's bags.
//
// Ops that read features share these inputs, in this order behind what else they have:
//   ids: one tensor a feature, int32 or int64: [B, …] dense, or the flat values of a ragged one.
//   splits: int64 [B + 1] for each ragged feature.
//   weights: float, as many as ids, for each weighted feature.
// and these attributes, all by feature: table_of, splits_of, weights_of (which one, -1: none), combiners ("none", "sum",
// "mean", "sqrtn").
#pragma once

#include <string>
#include <vector>

#include "../core/types.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace demb {

// REGISTER_OP's part that all such ops have.
#define DEMB_FEATURE_INPUTS()            \
  Input("ids: Tids")                     \
      .Input("splits: num_ragged * int64") \
      .Input("weights: num_weighted * float")

#define DEMB_FEATURE_ATTRS()              \
  Attr("Tids: list({int32, int64}) >= 1") \
      .Attr("num_ragged: int >= 0")       \
      .Attr("num_weighted: int >= 0")     \
      .Attr("table_of: list(int)")        \
      .Attr("splits_of: list(int)")       \
      .Attr("weights_of: list(int)")      \
      .Attr("combiners: list(string)")    \
      .Attr("invalid_ids: {'raise', 'zero', 'clip'}")

// What is known of the features when the kernel is made.
class FeatureAttrs {
 public:
  // kernel: the one that is being made; it knows where its inputs are. tables: how many there are.
  absl::Status init(tensorflow::OpKernelConstruction* ctx, const tensorflow::OpKernel& kernel, size_t tables);

  // The bags of all features, checked: splits rise, weights are as many as ids.
  absl::Status bags(tensorflow::OpKernelContext* ctx, std::vector<Bags>* bags) const;

  // Shape of a feature's output: [B, dim] pooled, else the ids' shape (or that of the flat values) and dim.
  tensorflow::TensorShape output_shape(tensorflow::OpKernelContext* ctx, int feature, int64_t dim) const;

  // Samples in the batch, by feature.
  int64_t batch_size(tensorflow::OpKernelContext* ctx, int feature) const;

  // The sample that a feature's id at a position belongs to.
  int64_t batch_row(tensorflow::OpKernelContext* ctx, int feature, int64_t position) const;

  int count() const { return static_cast<int>(table_of.size()); }
  bool pooled(int feature) const { return combiners[feature] != "none"; }
  const tensorflow::Tensor& ids(tensorflow::OpKernelContext* ctx, int feature) const;

  std::vector<int32_t> table_of, splits_of, weights_of;
  std::vector<std::string> combiners;
  InvalidIds invalid_ids = InvalidIds::kRaise;

 private:
  // How an error calls a feature: by its name, where the op was told it.
  std::string called(int feature) const;

  std::vector<std::string> names_;
  int ids_at_ = 0, splits_at_ = 0, weights_at_ = 0;
};

// The output shapes in the shape function of an op whose outputs are the features' vectors.
absl::Status infer_feature_outputs(tensorflow::shape_inference::InferenceContext* c, int ids_at,
                                   const std::vector<int64_t>& dims);

}  // namespace demb
