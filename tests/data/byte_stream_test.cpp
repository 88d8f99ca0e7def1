#include "data/byte_stream.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include "formats.hpp"
#include "temporary_directory.hpp"

namespace offstage::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string text_of(std::size_t size) {
  std::string text;
  for (std::size_t i = 0; text.size() < size; ++i) {
    text += "line " + std::to_string(i * i) + "\n";
  }
  return text.substr(0, size);
}

std::string gzip(std::string const& text) {
  z_stream zlib{};
  EXPECT_EQ(deflateInit2(&zlib, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string packed(deflateBound(&zlib, text.size()) + 64, '\0');
  zlib.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  zlib.avail_in = static_cast<uInt>(text.size());
  zlib.next_out = reinterpret_cast<Bytef*>(packed.data());
  zlib.avail_out = static_cast<uInt>(packed.size());
  EXPECT_EQ(deflate(&zlib, Z_FINISH), Z_STREAM_END);
  packed.resize(zlib.total_out);
  deflateEnd(&zlib);
  return packed;
}

std::string zstd(std::string const& text) {
  std::string packed(ZSTD_compressBound(text.size()), '\0');
  packed.resize(ZSTD_compress(packed.data(), packed.size(), text.data(), text.size(), 3));
  return packed;
}

/// All of a stream, by pieces of so many bytes.
std::string read_all(ByteStream& stream, std::size_t piece) {
  std::string text;
  std::string buffer(piece, '\0');
  while (auto const count = stream.read(std::as_writable_bytes(std::span{buffer}))) {
    text.append(buffer, 0, count);
    if (count < piece) {
      break;
    }
  }
  EXPECT_EQ(stream.done(), stream.file().size());
  return text;
}

std::string contents(std::string_view bytes, std::size_t piece = 1000) {
  TemporaryDirectory const folder;
  return read_all(*open_stream(folder.write("a.txt", bytes), "--from"), piece);
}

TEST(ByteStream, GivesPlainPackedAndTwicePackedContentsWhatevertheName) {
  for (std::size_t const size : {1UL, 999UL, 1000UL, 200'000UL, 9'000'000UL}) {
    auto const text = text_of(size);
    for (std::size_t const piece : {77UL, 1'000'000UL}) {
      EXPECT_EQ(contents(text, piece), text);
      EXPECT_EQ(contents(gzip(text), piece), text);
      EXPECT_EQ(contents(zstd(text), piece), text);
    }
    EXPECT_EQ(contents(gzip(text) + gzip("more") + gzip("")), text + "more");
    EXPECT_EQ(contents(zstd(text) + zstd("more") + zstd("")), text + "more");
  }
  EXPECT_EQ(contents("\x1F"), "\x1F");
}

TEST(ByteStream, PassesOverZerosBehindGzipAndFramesOfZstdThatSayNothing) {
  auto const text = text_of(5'000);
  for (std::size_t const zeros : {1UL, 512UL, 9'000'000UL}) {
    EXPECT_EQ(contents(gzip(text) + std::string(zeros, '\0')), text);
    EXPECT_EQ(contents(gzip(text) + std::string(zeros, '\0') + gzip("more")), text + "more");
  }
  using namespace std::literals;
  EXPECT_EQ(contents("\x5A\x2A\x4D\x18\x03\0\0\0abc"s + zstd(text)), text);
}

TEST(ByteStream, UnpacksTheLongWindowsOfZstd) {
  ZSTD_CCtx* const zstd = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(zstd, ZSTD_c_enableLongDistanceMatching, 1);
  ZSTD_CCtx_setParameter(zstd, ZSTD_c_windowLog,
                         28);  // the window, as the contents' size is not told
  ZSTD_CCtx_setParameter(zstd, ZSTD_c_contentSizeFlag, 0);
  auto const text = text_of(200'000);
  std::string packed(ZSTD_compressBound(text.size()), '\0');
  ZSTD_inBuffer from{text.data(), text.size(), 0};
  ZSTD_outBuffer to{packed.data(), packed.size(), 0};
  EXPECT_EQ(ZSTD_compressStream2(zstd, &to, &from, ZSTD_e_flush) == 0, true);
  EXPECT_EQ(ZSTD_compressStream2(zstd, &to, &from, ZSTD_e_end), 0U);
  ZSTD_freeCCtx(zstd);
  packed.resize(to.pos);
  EXPECT_EQ(contents(packed), text);
}

TEST(ByteStream, RefusesWhatIsCutOrDamagedByName) {
  auto const text = text_of(500'000);
  for (std::string const& packed : {gzip(text), zstd(text)}) {
    EXPECT_THAT(data_error([&] { (void)contents(packed.substr(0, packed.size() - 9)); }),
                AllOf(HasSubstr("--from="), HasSubstr("a.txt"), HasSubstr("ends in the middle")));
    auto damaged = packed;
    for (std::size_t i = packed.size() / 2; i < packed.size() / 2 + 40; ++i) {
      damaged[i] = static_cast<char>(damaged[i] ^ 0x5A);
    }
    EXPECT_THAT(data_error([&] { (void)contents(damaged); }),
                AllOf(HasSubstr("a.txt"), HasSubstr("damaged")));
    EXPECT_THAT(data_error([&] { (void)contents(packed + "garbage"); }), HasSubstr("a.txt"));
  }
}

}  // namespace
}  // namespace offstage::data
