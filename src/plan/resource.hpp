#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace offstage::plan {

/// A resource of a rank that a step keeps busy.
struct Resource {
  enum class Kind {
    device,         ///< products of forward and backward
    device_update,  ///< the device's updates
    cpu_update,     ///< the cores' updates
    sums,           ///< the cores' sums of gradients
    rank_link,
    to_device,
    to_host,
    path,         ///< a half-duplex path
    path_reads,   ///< one direction of a full-duplex path
    path_writes,  ///< the other one
    storage,      ///< all paths together
    host_memory
  };
  Kind kind{};
  std::size_t path{};  ///< number of a path, in the order of Machine's; else 0

  [[nodiscard]] bool is_path() const {
    return kind == Kind::path || kind == Kind::path_reads || kind == Kind::path_writes;
  }
  friend bool operator==(Resource const&, Resource const&) = default;
};

/// The words for users: "updates on the cores". Those of a path follow its name: ", reading".
[[nodiscard]] std::string_view words_of(Resource::Kind kind);

/// The name for users, of which a path has its directory: "/nvme, reading". `paths` are in the
/// order of Machine's and have a `directory` each.
template <class Paths>
[[nodiscard]] std::string name_of(Resource const& resource, Paths const& paths) {
  std::string name = resource.is_path() ? paths.at(resource.path).directory : std::string{};
  return name.append(words_of(resource.kind));
}

}  // namespace offstage::plan
