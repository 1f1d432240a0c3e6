// Outputs whose memory is used again: see BufferPool.
#pragma once

#include "../core/pages.h"
#include "tensorflow/core/framework/allocation_description.pb.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace demb {

// Memory that goes back to the pool with the last tensor that refers to it.
class PoolBuffer final : public tensorflow::TensorBuffer {
 public:
  PoolBuffer(void* data, size_t bytes, size_t capacity)
      : TensorBuffer(data), bytes_(bytes), capacity_(capacity) {}
  ~PoolBuffer() override { BufferPool::shared().give(data(), capacity_); }

  size_t size() const override { return bytes_; }
  TensorBuffer* root_buffer() override { return this; }
  void FillAllocationDescription(tensorflow::AllocationDescription* description) const override {
    description->set_requested_bytes(static_cast<int64_t>(bytes_));
    description->set_allocated_bytes(static_cast<int64_t>(capacity_));
    description->set_allocator_name("distributed_embeddings_pool");
  }

 private:
  size_t bytes_, capacity_;
};

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
  auto* buffer = new PoolBuffer(data, bytes, capacity);
  ctx->set_output(index, tensorflow::Tensor(dtype, shape, buffer));
  buffer->Unref();
  *out = ctx->mutable_output(index);
  return absl::OkStatus();
}

}  // namespace demb
