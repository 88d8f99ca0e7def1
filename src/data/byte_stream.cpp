#include "data/byte_stream.hpp"

#include <fmt/format.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <limits>
#include <new>
#include <vector>

#include "base/units.hpp"

namespace offstage::data {
namespace {

constexpr Bytes piece_bytes = 4 * MiB;

class PlainStream : public ByteStream {
 public:
  PlainStream(std::string const& path, std::string const& key) : file_{path, key} {}

  [[nodiscard]] std::size_t read(std::span<std::byte> out) override {
    auto const size = std::min(static_cast<Bytes>(out.size()), file_.size() - done_);
    file_.read(done_, out.first(static_cast<std::size_t>(size)));
    done_ += size;
    return static_cast<std::size_t>(size);
  }
  [[nodiscard]] InputFile const& file() const override { return file_; }
  [[nodiscard]] Bytes done() const override { return done_; }

 private:
  InputFile file_;
  Bytes done_{};
};

/// Unpacks piece by piece: unpack() takes from packed() and says how much it took and made.
class PackedStream : public ByteStream {
 public:
  PackedStream(std::string const& path, std::string const& key) : packed_{path, key} {}

  [[nodiscard]] std::size_t read(std::span<std::byte> out) final {
    std::size_t made = 0;
    while (made < out.size()) {
      if (used_ == buffer_.size()) {
        buffer_.resize(static_cast<std::size_t>(piece_bytes));
        buffer_.resize(packed_.read(buffer_));
        used_ = 0;
        if (buffer_.empty()) {
          if (!is_whole()) {
            file().fail("ends in the middle of its compressed contents; it was not copied whole");
          }
          return made;
        }
      }
      auto const step = unpack(std::span{buffer_}.subspan(used_), out.subspan(made));
      used_ += step.taken;
      made += step.made;
    }
    return made;
  }
  [[nodiscard]] InputFile const& file() const final { return packed_.file(); }
  [[nodiscard]] Bytes done() const final { return packed_.done(); }

 protected:
  struct Step {
    std::size_t taken;
    std::size_t made;
  };
  virtual Step unpack(std::span<std::byte const> packed, std::span<std::byte> out) = 0;
  /// True between members or frames.
  [[nodiscard]] virtual bool is_whole() const = 0;
  [[noreturn]] void fail(char const* why) const {
    file().fail(fmt::format("is damaged before byte {}: {}", done(), why));
  }

 private:
  PlainStream packed_;
  std::vector<std::byte> buffer_;
  std::size_t used_{};
};

class GzipStream final : public PackedStream {
 public:
  GzipStream(std::string const& path, std::string const& key) : PackedStream{path, key} {
    constexpr int gzip_window = 15 + 16;
    if (inflateInit2(&zlib_, gzip_window) != Z_OK) {
      throw std::bad_alloc{};
    }
  }
  ~GzipStream() override { inflateEnd(&zlib_); }
  GzipStream(GzipStream const&) = delete;
  GzipStream& operator=(GzipStream const&) = delete;

 private:
  Step unpack(std::span<std::byte const> packed, std::span<std::byte> out) override {
    constexpr std::size_t most = std::numeric_limits<uInt>::max();
    if (whole_ && packed.front() == std::byte{0}) {  // archives are padded so
      auto const end = std::ranges::find_if(packed, [](std::byte b) { return b != std::byte{0}; });
      return {static_cast<std::size_t>(end - packed.begin()), 0};
    }
    if (whole_) {
      inflateReset(&zlib_);
      whole_ = false;
    }
    // zlib does not write there.
    zlib_.next_in = const_cast<Bytef*>(reinterpret_cast<Bytef const*>(packed.data()));
    zlib_.avail_in = static_cast<uInt>(packed.size());
    zlib_.next_out = reinterpret_cast<Bytef*>(out.data());
    zlib_.avail_out = static_cast<uInt>(std::min(out.size(), most));
    auto const room = zlib_.avail_out;
    int const code = inflate(&zlib_, Z_NO_FLUSH);
    if (code == Z_MEM_ERROR) {
      throw std::bad_alloc{};
    }
    if (code != Z_OK && code != Z_STREAM_END) {
      fail(zlib_.msg != nullptr ? zlib_.msg : "no gzip data");
    }
    whole_ = code == Z_STREAM_END;
    return {packed.size() - zlib_.avail_in, static_cast<std::size_t>(room - zlib_.avail_out)};
  }
  [[nodiscard]] bool is_whole() const override { return whole_; }

  z_stream zlib_{};
  bool whole_{};
};

class ZstdStream final : public PackedStream {
 public:
  ZstdStream(std::string const& path, std::string const& key)
      : PackedStream{path, key}, zstd_{ZSTD_createDStream()} {
    if (zstd_ == nullptr) {
      throw std::bad_alloc{};
    }
    ZSTD_DCtx_setParameter(zstd_, ZSTD_d_windowLogMax, 31);  // of zstd --long=31
  }
  ~ZstdStream() override { ZSTD_freeDStream(zstd_); }
  ZstdStream(ZstdStream const&) = delete;
  ZstdStream& operator=(ZstdStream const&) = delete;

 private:
  Step unpack(std::span<std::byte const> packed, std::span<std::byte> out) override {
    ZSTD_inBuffer from{packed.data(), packed.size(), 0};
    ZSTD_outBuffer to{out.data(), out.size(), 0};
    std::size_t const code = ZSTD_decompressStream(zstd_, &to, &from);
    if (ZSTD_isError(code) != 0) {
      fail(ZSTD_getErrorName(code));
    }
    whole_ = code == 0;
    return {from.pos, to.pos};
  }
  [[nodiscard]] bool is_whole() const override { return whole_; }

  ZSTD_DStream* zstd_;
  bool whole_{};
};

}  // namespace

std::unique_ptr<ByteStream> open_stream(std::string const& path, std::string const& key) {
  using Magic = std::array<unsigned char, 4>;
  Magic first{};
  InputFile const file{path, key};
  auto const size = std::min(file.size(), static_cast<Bytes>(first.size()));
  file.read(0, std::as_writable_bytes(std::span{first}).first(static_cast<std::size_t>(size)));
  if (first[0] == 0x1F && first[1] == 0x8B) {
    return std::make_unique<GzipStream>(path, key);
  }
  // A frame that is passed over, whose magic ends in any digit, stands before others.
  Magic const passed_over{static_cast<unsigned char>(0x50 | (first[0] & 0x0F)), 0x2A, 0x4D, 0x18};
  if (first == Magic{0x28, 0xB5, 0x2F, 0xFD} || first == passed_over) {
    return std::make_unique<ZstdStream>(path, key);
  }
  return std::make_unique<PlainStream>(path, key);
}

}  // namespace offstage::data
