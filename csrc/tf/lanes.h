// What other ranks ask of this one: rows by (source rank, lane), as they come off the wire.
//
// Ops that answer lanes share these inputs: rows int64 [n], by source, then lane; counts int64 [sources, lanes]. And the
// attribute lane_tables: which of the op's tables a lane reads. Vectors and gradients lie in the same order, so that they
// go from the lookup into the send buffer and from the receive buffer into the update as they are.
#pragma once

#include <vector>

#include "../core/types.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace demb {

#define DEMB_LANE_INPUTS() Input("lane_rows: int64").Input("counts: int64")
#define DEMB_LANE_ATTRS() Attr("lane_tables: list(int)")

// One source's rows of one lane: a bag of one id each. offset: of its vectors in the flat buffer (floats).
struct LanePiece {
  int32_t source, table;
  Bags bags;
  int64_t offset;
};

class LaneAttrs {
 public:
  absl::Status init(tensorflow::OpKernelConstruction* ctx, const tensorflow::OpKernel& kernel);
  // All pieces in the order of the wire, and the elements of their vectors together.
  absl::Status pieces(tensorflow::OpKernelContext* ctx, const std::vector<int64_t>& dims,
                      std::vector<LanePiece>* pieces, int64_t* elements) const;
  int inputs_end() const { return rows_at_ + 2; }

 private:
  std::vector<int32_t> lane_tables_;
  int rows_at_ = 0;
};

}  // namespace demb
