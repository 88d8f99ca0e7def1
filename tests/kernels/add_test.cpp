#include "kernels/pointwise/add.hpp"

#include "kernels/pointwise_support.hpp"

namespace offstage::kernels {
namespace {

TEST(Add, RoundsTheSumOnce) {
  std::vector<bfloat16> const x{to_bf16(1.0F), to_bf16(256.0F)}, y{to_bf16(2.0F), to_bf16(1.0F)};
  std::vector<bfloat16> sum(2);
  host::add<bfloat16>({x, y, sum, 1, 2});
  EXPECT_EQ(load(sum[0]), 3.0F);
  EXPECT_EQ(load(sum[1]), 256.0F);  // 257 has no bf16 number; the even neighbour is 256
}

template <class T>
void host_adds_as_ref() {
  for (Shape const shape : odd_shapes) {
    auto const x = random_values<T>(shape.rows * shape.width, 1);
    auto const y = random_values<T>(shape.rows * shape.width, 2);
    auto wanted = x, found = x;
    ref::add<T>({x, y, wanted, shape.rows, shape.width});
    host::add<T>({found, y, found, shape.rows, shape.width});
    EXPECT_EQ(found, wanted);
  }
}

TEST(Add, HostHasTheBitsOfTheReferenceInPlaceToo) {
  host_adds_as_ref<float>();
  host_adds_as_ref<bfloat16>();
  host_adds_as_ref<float16>();
}

TEST(Add, RejectsViewsOfTheWrongLength) {
  std::vector<float> six(6), four(4);
  EXPECT_THROW(host::add<float>({six, four, six, 2, 3}), PreconditionError);
  EXPECT_THROW(host::add<float>({six, six, four, 2, 3}), PreconditionError);
}

}  // namespace
}  // namespace offstage::kernels
