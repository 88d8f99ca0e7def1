#include "checkpoint/texts.hpp"

#include <cstddef>
#include <span>
#include <utility>

namespace offstage::checkpoint {

std::vector<std::string> gather_texts(mpi::Communicator const& comm, std::string const& mine) {
  auto const sizes = comm.all_gather_value(static_cast<Bytes>(mine.size()));
  std::vector<mpi::Slice> parts;
  Bytes total = 0;
  for (Bytes const size : sizes) {
    parts.push_back({total, size});
    total += size;
  }
  std::string all(comm.rank() == 0 ? static_cast<std::size_t>(total) : 0, '\0');
  comm.gather(std::as_bytes(std::span{mine}), std::as_writable_bytes(std::span{all}), parts, 0);
  std::vector<std::string> texts;
  if (comm.rank() == 0) {
    for (mpi::Slice const& part : parts) {
      texts.push_back(
          all.substr(static_cast<std::size_t>(part.offset), static_cast<std::size_t>(part.size)));
    }
  }
  return texts;
}

void tell_texts(mpi::Communicator const& comm, std::vector<std::string>& texts) {
  std::vector<std::size_t> sizes;
  std::string all;
  for (std::string const& text : texts) {
    sizes.push_back(text.size());
    all += text;
  }
  sizes.resize(static_cast<std::size_t>(comm.size()));
  comm.broadcast(std::as_writable_bytes(std::span{sizes}), 0);
  all = comm.broadcast(std::move(all), 0);
  texts.clear();
  std::size_t begin = 0;
  for (std::size_t const size : sizes) {
    texts.push_back(all.substr(begin, size));
    begin += size;
  }
}

}  // namespace offstage::checkpoint
