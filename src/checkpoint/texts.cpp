#include "checkpoint/texts.hpp"

#include <cstddef>
#include <span>
#include <utility>

namespace offstage::checkpoint {

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
