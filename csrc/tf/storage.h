// Memory of tables: huge pages where the system allows them.
#pragma once

#include "tensorflow/core/framework/tensor.h"

namespace demb {

// A zeroed tensor of a table's size. faulted: its pages are there from the start, so that no step waits for one.
absl::Status new_storage(tensorflow::DataType dtype, const tensorflow::TensorShape& shape, bool faulted,
                         tensorflow::Tensor* out);

}  // namespace demb
