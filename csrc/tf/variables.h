// Tables and slots in resource variables: found, locked, and seen as core sees them. Never copied by a step.
#pragma once

#include <cstring>
#include <vector>

#include "../core/types.h"
#include "../core/update.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"

namespace demb {

enum class Access { kRead, kWrite };

// The variables of some inputs, locked from `open` until this goes.
class LockedVariables {
 public:
  LockedVariables() = default;
  ~LockedVariables();
  LockedVariables(const LockedVariables&) = delete;
  LockedVariables& operator=(const LockedVariables&) = delete;

  // Inputs [first, first + count) of the kernel; one variable may stand there several times. Under kWrite their memory
  // is made their own: whoever reads a variable's value from then on gets a copy (TensorFlow's copy-on-read mode).
  absl::Status open(tensorflow::OpKernelContext* ctx, int first, int count, Access access);

  // The value of input first + i, as it lies there.
  tensorflow::Tensor& tensor(int i) const { return *variables_[i]->tensor(); }
  // Input first + i as a table of `dim` columns, of float32, bfloat16 or float16; more columns than dim are slots.
  absl::Status table(int i, int64_t dim, Table* table) const;
  // Input first + i as a slot whose values begin `offset` bytes behind the row's begin.
  absl::Status slot(int i, int64_t offset, int64_t width, Slot* slot) const;

 private:
  absl::Status own(tensorflow::Var* var) const;

  std::vector<tensorflow::core::RefCountPtr<tensorflow::Var>> variables_;
  std::vector<tensorflow::Var*> locked_;  // each once
  Access access_ = Access::kRead;
};

}  // namespace demb
