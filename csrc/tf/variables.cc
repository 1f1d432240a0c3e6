#include "variables.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "pool_tensor.h"
#include "storage.h"

namespace demb {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::Var;

LockedVariables::~LockedVariables() {
  for (Var* var : locked_) access_ == Access::kWrite ? var->mu()->unlock() : var->mu()->unlock_shared();
}

absl::Status LockedVariables::open(OpKernelContext* ctx, int first, int count, Access access) {
  access_ = access;
  std::vector<Var*> wanted;
  for (int i = 0; i < count; ++i) {
    tensorflow::core::RefCountPtr<Var> var;
    TF_RETURN_IF_ERROR(tensorflow::LookupResource(ctx, tensorflow::HandleFromInput(ctx, first + i), &var));
    wanted.push_back(var.get());
    variables_.push_back(std::move(var));
  }
  // In the order that TensorFlow's own kernels keep, each once: two kernels must not wait for each other.
  std::sort(wanted.begin(), wanted.end(), [](Var* a, Var* b) { return a->mu() < b->mu(); });
  wanted.erase(std::unique(wanted.begin(), wanted.end()), wanted.end());
  for (Var* var : wanted) {
    access == Access::kWrite ? var->mu()->lock() : var->mu()->lock_shared();
    locked_.push_back(var);
  }
  for (const auto& var : variables_) {
    if (!var->is_initialized || !var->tensor()->IsInitialized()) {
      return absl::FailedPreconditionError("a table was used before it was initialized");
    }
    if (!tensorflow::DataTypeCanUseMemcpy(var->tensor()->dtype())) {
      return absl::InvalidArgumentError(absl::StrCat("a variable must hold numbers. Received: dtype ",
                                                     tensorflow::DataTypeString(var->tensor()->dtype())));
    }
    if (access == Access::kWrite) TF_RETURN_IF_ERROR(own(var.get()));
  }
  return absl::OkStatus();
}

absl::Status LockedVariables::own(Var* var) const {
  if (!var->copy_on_read_mode.load() && !var->tensor()->RefCountIsOne()) {
    // Somebody holds the value that was read before the first update: it must not change under his eyes. Once.
    const Tensor old = *var->tensor();
    TF_RETURN_IF_ERROR(new_storage(old.dtype(), old.shape(), false, var->tensor()));
    std::memcpy(var->tensor()->data(), old.data(), old.TotalBytes());
  }
  var->copy_on_read_mode.store(true);
  return absl::OkStatus();
}

absl::Status LockedVariables::table(int i, int64_t dim, Table* table) const {
  const Tensor& tensor = this->tensor(i);
  if (tensor.dims() != 2 || tensor.dim_size(1) < dim) {
    return absl::InvalidArgumentError(absl::StrCat("a table must be of shape [rows, ", dim,
                                                   "] or wider. Received: shape ", tensor.shape().DebugString()));
  }
  switch (tensor.dtype()) {
    case tensorflow::DT_FLOAT: table->dtype = DType::kFloat32; break;
    case tensorflow::DT_BFLOAT16: table->dtype = DType::kBFloat16; break;
    case tensorflow::DT_HALF: table->dtype = DType::kFloat16; break;
    default:
      return absl::InvalidArgumentError(absl::StrCat("a table must be float32, bfloat16 or float16. Received: dtype ",
                                                     tensorflow::DataTypeString(tensor.dtype())));
  }
  table->data = static_cast<char*>(tensor.data());
  table->stride = tensor.dim_size(1) * bytes_of(table->dtype);
  table->num_rows = tensor.dim_size(0);
  table->dim = static_cast<int32_t>(dim);
  return absl::OkStatus();
}

absl::Status LockedVariables::slot(int i, int64_t offset, int64_t width, Slot* slot) const {
  const Tensor& tensor = this->tensor(i);
  const int64_t row = tensor.dims() == 2 ? tensor.dim_size(1) * tensorflow::DataTypeSize(tensor.dtype()) : 0;
  if (offset < 0 || width < 0 || offset + width * 4 > row) {
    return absl::InvalidArgumentError(absl::StrCat("a slot of ", width, " values at byte ", offset,
                                                   " must lie inside its variable's rows. Received: shape ",
                                                   tensor.shape().DebugString()));
  }
  slot->data = static_cast<char*>(tensor.data()) + offset;
  slot->stride = row;
  slot->width = static_cast<int32_t>(width);
  return absl::OkStatus();
}

}  // namespace demb
