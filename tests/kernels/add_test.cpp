#include "add.hpp"

#include "kernels/pointwise_support.hpp"

namespace offstage::kernels {
namespace {

TEST(Add, AddsInPlace) {
  std::vector<float> x{1.0F, -2.0F, 0.5F};
  std::vector<float> const y{0.25F, 2.0F, 4.0F};

  ref::add<float>({x, y});
  EXPECT_EQ(x, (std::vector<float>{1.25F, 0.0F, 4.5F}));
  host::add<float>({x, y});
  EXPECT_EQ(x, (std::vector<float>{1.5F, 2.0F, 8.5F}));
}

TEST(Add, RoundsOnceToNearestEven) {
  // 1 + 2^-8 lies halfway between 1 and 1 + 2^-7; the even one is 1.
  std::vector<bfloat16> x = convert<bfloat16>(std::vector<double>{1.0, 1.0078125});
  std::vector<bfloat16> const y(2, store<bfloat16>(0.00390625));

  ref::add<bfloat16>({x, y});

  EXPECT_EQ(convert<double>(x), (std::vector<double>{1.0, 1.015625}));
}

template <class T>
void expect_host_like_ref(std::int64_t count) {
  auto const y = random_values<T>(count, 1);
  auto x = random_values<T>(count, 2);
  auto expected = x;
  ref::add<T>({expected, y});
  host::add<T>({x, y});
  EXPECT_EQ(x, expected) << count;
}

TEST(Add, HostGivesTheBitsOfRef) {
  for (std::int64_t const count : {0, 1, 31, 16'384, 50'001}) {
    expect_host_like_ref<float>(count);
    expect_host_like_ref<bfloat16>(count);
  }
}

TEST(Add, RunsOnAStream) {
  std::vector<double> a{1.0}, b{2.0};
  std::vector<float> c{1.0F}, d{2.0F};
  on_stream([&](device::Stream& stream) {
    add<double>(stream, {a, b});
    add<float>(stream, {c, d});
  });
  EXPECT_EQ(a[0], 3.0);
  EXPECT_EQ(c[0], 3.0F);
}

TEST(Add, RejectsViewsOfDifferentLength) {
  std::vector<float> x(2), y(3);
  EXPECT_THROW(ref::add<float>({x, y}), PreconditionError);
  EXPECT_THROW(host::add<float>({x, y}), PreconditionError);
}

}  // namespace
}  // namespace offstage::kernels
