#include "data/input_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "base/error.hpp"
#include "base/watch.hpp"

namespace offstage::data {

void ByteSource::fail(std::string const& problem) const {
  throw DataError{fmt::format("{}: {}", name(), problem)};
}

// Opening a pipe must not block: it is refused by name.
InputFile::Descriptor::Descriptor(std::string const& path)
    : value_{open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)} {}

InputFile::Descriptor::~Descriptor() {
  if (value_ >= 0) {
    close(value_);
  }
}

InputFile::InputFile(std::string const& path, std::string const& key)
    : path_{path}, key_{key}, file_{path} {
  struct stat status {};
  if (file_.get() < 0 || fstat(file_.get(), &status) != 0) {
    fail(fmt::format("cannot open: {}; name a readable file",
                     std::generic_category().message(errno)));
  }
  if (!S_ISREG(status.st_mode)) {
    fail("not a regular file; name a file");
  }
  if (status.st_size == 0) {
    fail("the file is empty; name a file with something in it");
  }
  size_ = status.st_size;
}

std::string InputFile::name() const {
  return key_.empty() ? path_ : key_ + '=' + path_;
}

void InputFile::read(Bytes offset, std::span<std::byte> out) const {
  auto const size = static_cast<Bytes>(out.size());
  require(offset >= 0 && size <= size_ && offset <= size_ - size, "InputFile: read beyond the end");
  Waiting const waiting{"a read of a data file, offset", offset};
  for (Bytes done = 0; done < size;) {
    auto const count =
        pread(file_.get(), out.data() + done, static_cast<std::size_t>(size - done), offset + done);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0) {
      throw IoError{fmt::format("{}: cannot read at byte {}: {}", name(), offset + done,
                                std::generic_category().message(errno))};
    }
    if (count == 0) {
      fail(fmt::format(
          "the file had {} bytes when it was opened and now ends before byte {}; leave it as it "
          "is while a run reads it",
          size_, offset + done));
    }
    done += count;
  }
}

}  // namespace offstage::data
