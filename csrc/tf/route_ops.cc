// DembRoute: the ids of a rank's samples, each row once, by the shard that holds it.
#include <numeric>
#include <vector>

#include "../core/pages.h"
#include "../core/route.h"
#include "absl/status/status.h"
#include "features.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tf_executor.h"

namespace demb {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::shape_inference::InferenceContext;

// Tables with shard_counts 0 are not routed: their ids are checked, and their inverse is empty.
class RouteOp final : public OpKernel {
 public:
  explicit RouteOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_rows", &num_rows_));
    OP_REQUIRES_OK(ctx, features_.init(ctx, *this, num_rows_.size()));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("shard_counts", &shard_counts_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("cyclic", &cyclic_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("shard_ends", &shard_ends_));
    const int64_t shards = std::accumulate(shard_counts_.begin(), shard_counts_.end(), int64_t{0});
    OP_REQUIRES(ctx, shard_counts_.size() == num_rows_.size() && cyclic_.size() == num_rows_.size() &&
                         static_cast<int64_t>(shard_ends_.size()) == shards,
                absl::InvalidArgumentError("the attributes must have one entry a table, `shard_ends` one a shard"));
    int64_t at = 0;
    for (size_t t = 0; t < num_rows_.size(); ++t) {
      OP_REQUIRES(ctx, ends_are_valid(t, at), absl::InvalidArgumentError("`shard_ends` must rise to the number of rows"));
      first_shard_.push_back(at);
      at += shard_counts_[t];
    }
  }

  void Compute(OpKernelContext* ctx) override {
    std::vector<Bags> bags;
    OP_REQUIRES_OK(ctx, features_.bags(ctx, &bags));
    std::vector<InvalidReport> reports(bags.size());
    const TfExecutor executor(ctx);
    OP_REQUIRES_OK(ctx, route_tables(ctx, bags, &reports, executor));
    check_others(bags, &reports, executor);
    const int features = features_.count(), shards = static_cast<int>(shard_ends_.size());
    Tensor *counts = nullptr, *wrong = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(shards + features, TensorShape({features}), &counts));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(shards + features + 1, TensorShape({}), &wrong));
    bool bad = false;
    for (int f = 0; f < features; ++f) {
      counts->vec<int64_t>()(f) = reports[f].count.load();
      bad |= features_.invalid_ids == InvalidIds::kRaise && reports[f].count.load() > 0;
      bad |= features_.batch_size(ctx, f) != features_.batch_size(ctx, 0);
    }
    wrong->scalar<bool>()() = bad;
  }

 private:
  bool ends_are_valid(size_t t, int64_t first) const {
    if (shard_counts_[t] == 0 || cyclic_[t]) return true;
    int64_t before = 0;
    for (int64_t s = first; s < first + shard_counts_[t]; ++s) {
      if (shard_ends_[s] < before) return false;
      before = shard_ends_[s];
    }
    return before == num_rows_[t];
  }

  absl::Status route_tables(OpKernelContext* ctx, const std::vector<Bags>& bags, std::vector<InvalidReport>* reports,
                            const Executor& executor) const {
    const size_t tables = num_rows_.size();
    std::vector<std::vector<Bags>> own(tables);
    std::vector<std::vector<InvalidReport*>> invalid(tables);
    std::vector<std::vector<int>> members(tables);
    for (int f = 0; f < features_.count(); ++f) {
      const int t = features_.table_of[f];
      own[t].push_back(bags[f]);
      invalid[t].push_back(&(*reports)[f]);
      members[t].push_back(f);
    }
    std::vector<RouteJob> jobs;
    std::vector<RouteResult> results;
    std::vector<Scratch<int64_t>> room;
    std::vector<size_t> routed;
    for (size_t t = 0; t < tables; ++t) {
      if (shard_counts_[t] == 0) continue;
      RouteJob job{own[t].data(), static_cast<int64_t>(own[t].size()), num_rows_[t],
                   {shard_counts_[t], cyclic_[t], shard_ends_.data() + first_shard_[t]}, invalid[t].data()};
      RouteResult result;
      room.emplace_back(job.num_ids());
      result.rows = room.back().get();
      room.emplace_back(shard_counts_[t]);
      result.shard_counts = room.back().get();
      room.emplace_back(job.num_ids());
      result.inverse = room.back().get();
      jobs.push_back(job);
      results.push_back(result);
      routed.push_back(t);
    }
    if (!route(jobs.data(), results.data(), static_cast<int64_t>(jobs.size()), features_.invalid_ids, executor)) {
      return absl::UnimplementedError("a table must have fewer than 2^32 - 1 rows, and a step fewer ids of one table");
    }
    std::vector<const int64_t*> inverse(bags.size(), nullptr);
    for (size_t j = 0; j < jobs.size(); ++j) {
      const int64_t* rows = results[j].rows;
      for (int64_t s = 0; s < shard_counts_[routed[j]]; ++s) {
        Tensor* out = nullptr;
        const int64_t n = results[j].shard_counts[s];
        TF_RETURN_IF_ERROR(ctx->allocate_output(static_cast<int>(first_shard_[routed[j]] + s), TensorShape({n}), &out));
        std::copy(rows, rows + n, out->flat<int64_t>().data());
        rows += n;
      }
      const int64_t* next = results[j].inverse;
      for (int f : members[routed[j]]) {
        inverse[f] = next;
        next += bags[f].num_ids;
      }
    }
    for (int f = 0; f < features_.count(); ++f) {
      Tensor* out = nullptr;
      const int64_t n = inverse[f] == nullptr ? 0 : bags[f].num_ids;
      const int index = static_cast<int>(shard_ends_.size()) + f;
      TF_RETURN_IF_ERROR(ctx->allocate_output(index, inverse[f] == nullptr ? TensorShape({0}) : features_.ids(ctx, f).shape(), &out));
      std::copy(inverse[f], inverse[f] + n, out->flat<int64_t>().data());
    }
    return absl::OkStatus();
  }

  void check_others(const std::vector<Bags>& bags, std::vector<InvalidReport>* reports, const Executor& executor) const {
    executor.run(features_.count(), [&](int64_t f) {
      if (shard_counts_[features_.table_of[f]] != 0) return;
      const uint64_t rows = static_cast<uint64_t>(num_rows_[features_.table_of[f]]);
      for (int64_t i = 0; i < bags[f].num_ids; ++i) {
        if (static_cast<uint64_t>(bags[f].id(i)) >= rows) (*reports)[f].add(i);
      }
    });
  }

  FeatureAttrs features_;
  std::vector<int64_t> num_rows_, shard_counts_, shard_ends_, first_shard_;
  std::vector<bool> cyclic_;
};

REGISTER_OP("DembRoute")
    .DEMB_FEATURE_INPUTS()
    .Output("rows: num_shards * int64")
    .Output("inverse: num_features * int64")
    .Output("invalid: int64")
    .Output("wrong: bool")
    .Attr("num_shards: int >= 0")
    .Attr("num_features: int >= 1")
    .Attr("num_rows: list(int)")
    .Attr("shard_counts: list(int)")
    .Attr("cyclic: list(bool)")
    .Attr("shard_ends: list(int)")
    .DEMB_FEATURE_ATTRS()
    .SetShapeFn([](InferenceContext* c) {
      int shards, features;
      std::vector<int32_t> table_of;
      std::vector<int64_t> counts;
      TF_RETURN_IF_ERROR(c->GetAttr("num_shards", &shards));
      TF_RETURN_IF_ERROR(c->GetAttr("num_features", &features));
      TF_RETURN_IF_ERROR(c->GetAttr("table_of", &table_of));
      TF_RETURN_IF_ERROR(c->GetAttr("shard_counts", &counts));
      for (int s = 0; s < shards; ++s) c->set_output(s, c->Vector(InferenceContext::kUnknownDim));
      for (int f = 0; f < features; ++f) {
        const bool routed = static_cast<size_t>(table_of[f]) < counts.size() && counts[table_of[f]] > 0;
        c->set_output(shards + f, routed ? c->input(f) : c->Vector(0));
      }
      c->set_output(shards + features, c->Vector(features));
      c->set_output(shards + features + 1, c->Scalar());
      return absl::OkStatus();
    });

REGISTER_KERNEL_BUILDER(Name("DembRoute").Device(tensorflow::DEVICE_CPU), RouteOp);

}  // namespace
}  // namespace demb
