#include "features.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace demb {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

absl::Status FeatureAttrs::init(OpKernelConstruction* ctx, const tensorflow::OpKernel& kernel, size_t tables) {
  std::string policy;
  TF_RETURN_IF_ERROR(ctx->GetAttr("table_of", &table_of));
  TF_RETURN_IF_ERROR(ctx->GetAttr("splits_of", &splits_of));
  TF_RETURN_IF_ERROR(ctx->GetAttr("weights_of", &weights_of));
  TF_RETURN_IF_ERROR(ctx->GetAttr("combiners", &combiners));
  TF_RETURN_IF_ERROR(ctx->GetAttr("invalid_ids", &policy));
  if (ctx->HasAttr("feature_names")) TF_RETURN_IF_ERROR(ctx->GetAttr("feature_names", &names_));
  invalid_ids = policy == "zero" ? InvalidIds::kZero : policy == "clip" ? InvalidIds::kClip : InvalidIds::kRaise;
  // Where the argument lists begin among the kernel's inputs.
  int end;
  TF_RETURN_IF_ERROR(kernel.InputRange("ids", &ids_at_, &end));
  if (end - ids_at_ != count() || splits_of.size() != table_of.size() || weights_of.size() != table_of.size() ||
      combiners.size() != table_of.size()) {
    return absl::InvalidArgumentError("the attributes must all have one entry a feature");
  }
  TF_RETURN_IF_ERROR(kernel.InputRange("splits", &splits_at_, &end));
  const int ragged = end - splits_at_;
  TF_RETURN_IF_ERROR(kernel.InputRange("weights", &weights_at_, &end));
  for (int f = 0; f < count(); ++f) {
    if (splits_of[f] >= ragged || weights_of[f] >= end - weights_at_) {
      return absl::InvalidArgumentError("`splits_of` and `weights_of` must name inputs that are there");
    }
    // Eager mode runs no shape function: only this stands between a wrong number and the memory behind the tables.
    if (table_of[f] < 0 || static_cast<size_t>(table_of[f]) >= tables) {
      return absl::InvalidArgumentError("`table_of` must name tables that are there");
    }
  }
  return absl::OkStatus();
}

std::string FeatureAttrs::called(int feature) const {
  return static_cast<size_t>(feature) < names_.size() ? "feature " + names_[feature] : absl::StrCat("input ", feature);
}

const Tensor& FeatureAttrs::ids(OpKernelContext* ctx, int feature) const { return ctx->input(ids_at_ + feature); }

int64_t FeatureAttrs::batch_size(OpKernelContext* ctx, int feature) const {
  if (splits_of[feature] >= 0) return ctx->input(splits_at_ + splits_of[feature]).NumElements() - 1;
  const Tensor& given = ids(ctx, feature);
  return given.dims() == 0 ? 0 : given.dim_size(0);
}

int64_t FeatureAttrs::batch_row(OpKernelContext* ctx, int feature, int64_t position) const {
  if (splits_of[feature] < 0) return position / (ids(ctx, feature).NumElements() / batch_size(ctx, feature));
  // Of the given splits: the bags of an input without combiner are single ids.
  const auto splits = ctx->input(splits_at_ + splits_of[feature]).flat<int64_t>();
  return std::upper_bound(splits.data(), splits.data() + splits.size(), position) - splits.data() - 1;
}

TensorShape FeatureAttrs::output_shape(OpKernelContext* ctx, int feature, int64_t dim) const {
  if (pooled(feature)) return TensorShape({batch_size(ctx, feature), dim});
  TensorShape shape = ids(ctx, feature).shape();
  shape.AddDim(dim);
  return shape;
}

absl::Status FeatureAttrs::bags(OpKernelContext* ctx, std::vector<Bags>* bags) const {
  for (int f = 0; f < count(); ++f) {
    const Tensor& given = ids(ctx, f);
    Bags b;
    b.ids = given.data();
    b.ids_are_64 = given.dtype() == tensorflow::DT_INT64;
    b.num_ids = given.NumElements();
    b.num_bags = batch_size(ctx, f);
    if (splits_of[f] >= 0) {
      const Tensor& splits = ctx->input(splits_at_ + splits_of[f]);
      if (splits.dims() != 1 || splits.NumElements() < 1) {
        return absl::InvalidArgumentError(absl::StrCat(called(f), ": splits must be a vector with at least one entry"));
      }
      b.splits = splits.flat<int64_t>().data();
      if (!splits_are_valid(b.splits, b.num_bags, b.num_ids)) {
        return absl::InvalidArgumentError(absl::StrCat(
            called(f), ": row splits must begin at 0, never fall, and end at the number of ids, ", b.num_ids,
            " (of a SparseTensor: its row indices must lie inside its dense shape). Received: ", b.num_bags + 1,
            " splits from ", b.splits[0], " to ", b.splits[b.num_bags]));
      }
    } else if (given.dims() == 0) {
      return absl::InvalidArgumentError(absl::StrCat(called(f), ": ids must have a batch axis"));
    }
    if (weights_of[f] >= 0) {
      const Tensor& weights = ctx->input(weights_at_ + weights_of[f]);
      if (weights.NumElements() != b.num_ids) {
        return absl::InvalidArgumentError(absl::StrCat(called(f), ": there must be one weight an id. Received: ",
                                                       weights.NumElements(), " weights, ", b.num_ids, " ids"));
      }
      b.weights = weights.flat<float>().data();
    }
    if (!pooled(f)) {
      b.splits = nullptr;
      b.num_bags = b.num_ids;
      b.hotness = 1;
    } else {
      b.hotness = b.num_bags == 0 ? 0 : b.num_ids / b.num_bags;
      b.combiner = combiners[f] == "mean" ? Combiner::kMean : combiners[f] == "sqrtn" ? Combiner::kSqrtN : Combiner::kSum;
    }
    bags->push_back(b);
  }
  return absl::OkStatus();
}

absl::Status infer_feature_outputs(InferenceContext* c, int ids_at, const std::vector<int64_t>& dims) {
  std::vector<int32_t> table_of, splits_of;
  std::vector<std::string> combiners;
  TF_RETURN_IF_ERROR(c->GetAttr("table_of", &table_of));
  TF_RETURN_IF_ERROR(c->GetAttr("splits_of", &splits_of));
  TF_RETURN_IF_ERROR(c->GetAttr("combiners", &combiners));
  const int splits_at = ids_at + static_cast<int>(table_of.size());
  for (size_t f = 0; f < table_of.size(); ++f) {
    if (table_of[f] < 0 || static_cast<size_t>(table_of[f]) >= dims.size()) {
      return absl::InvalidArgumentError("`table_of` must name tables that are there");
    }
    const ShapeHandle ids = c->input(ids_at + static_cast<int>(f));
    const auto dim = c->MakeDim(dims[table_of[f]]);
    if (combiners[f] == "none") {
      ShapeHandle out;
      TF_RETURN_IF_ERROR(c->Concatenate(ids, c->Vector(dim), &out));
      c->set_output(static_cast<int>(f), out);
      continue;
    }
    auto batch = c->UnknownDim();
    if (splits_of[f] >= 0) {
      const ShapeHandle splits = c->input(splits_at + splits_of[f]);
      if (c->RankKnown(splits)) TF_RETURN_IF_ERROR(c->Subtract(c->Dim(splits, 0), 1, &batch));
    } else if (c->RankKnown(ids) && c->Rank(ids) > 0) {
      batch = c->Dim(ids, 0);
    }
    c->set_output(static_cast<int>(f), c->Matrix(batch, dim));
  }
  return absl::OkStatus();
}

}  // namespace demb
