// Outputs whose memory is used again: see BufferPool.
#pragma once

#include "../core/pages.h"
#include "owned_buffer.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace demb {

// Output `index` of the kernel, out of the pool where it is large.
inline absl::Status allocate_pooled(tensorflow::OpKernelContext* ctx, int index, const tensorflow::TensorShape& shape,
                                    tensorflow::Tensor** out) {
  constexpr size_t kWorthwhile = size_t{1} << 15;
  const tensorflow::DataType dtype = ctx->expected_output_dtype(index);
  const size_t bytes = static_cast<size_t>(shape.num_elements()) * tensorflow::DataTypeSize(dtype);
  if (bytes < kWorthwhile) return ctx->allocate_output(index, shape, out);
  size_t capacity;
  void* data = BufferPool::shared().take(bytes, &capacity);
  if (data == nullptr) return absl::ResourceExhaustedError("out of memory for an output of embedding vectors");
  const auto release = [](void* from, size_t size) { BufferPool::shared().give(from, size); };
  auto* buffer = new OwnedBuffer(data, bytes, capacity, release, "distributed_embeddings_pool");
  ctx->set_output(index, tensorflow::Tensor(dtype, shape, buffer));
  buffer->Unref();
  *out = ctx->mutable_output(index);
  return absl::OkStatus();
}

}  // namespace demb
