// A checkpoint with right checksums that no run wrote: a list of changes to what its manifests and
// its master say, and to the arrays and attributes of its HDF5 files. Whoever reads it reads it or
// throws, and opens nothing else: a pipe beside it would block.
#include <hdf5.h>
#include <sys/stat.h>

#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sample_checkpoint.hpp"

namespace {

using namespace offstage;
using namespace offstage::checkpoint;

/// What the fuzzer wants, number by number; zeros at the end.
class Choices {
 public:
  explicit Choices(std::span<std::uint8_t const> bytes) : bytes_{bytes} {}

  [[nodiscard]] bool empty() const { return bytes_.empty(); }
  std::uint8_t byte() {
    std::uint8_t const value = bytes_.empty() ? std::uint8_t{0} : bytes_.front();
    bytes_ = bytes_.subspan(bytes_.empty() ? 0 : 1);
    return value;
  }
  std::int64_t below(std::int64_t count) { return byte() % count; }
  std::int64_t number() {
    constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
    constexpr std::array<std::int64_t, 14> known{0,
                                                 -1,
                                                 1,
                                                 2,
                                                 3,
                                                 4096,
                                                 8192,
                                                 12288,
                                                 1 << 20,
                                                 2'000'000'000,
                                                 std::int64_t{1} << 50,
                                                 most,
                                                 most - 4095,
                                                 std::numeric_limits<std::int64_t>::min()};
    std::int64_t const which = below(known.size() + 2);
    if (which < std::ssize(known)) {
      return known[static_cast<std::size_t>(which)];
    }
    return which == std::ssize(known) ? byte() : static_cast<std::int64_t>(bits());
  }
  double real() { return std::bit_cast<double>(bits()); }
  std::string name() {
    constexpr std::array<char const*, 9> known{
        "rank-0000.h5",          "rank-0001.h5", "rank-0000.json",
        "extent-0000-000001.h5", "../pipe",      "pipe",
        "extent-0001-000000.h5", "/dev/zero",    ""};
    std::int64_t const which = below(known.size() + 1);
    if (which < std::ssize(known)) {
      return known[static_cast<std::size_t>(which)];
    }
    return std::string(static_cast<std::size_t>(byte()), static_cast<char>(byte()));
  }

 private:
  std::uint64_t bits() {
    std::uint64_t value = 0;
    for (int i = 0; i < 8; ++i) {
      value = value << 8 | byte();
    }
    return value;
  }

  std::span<std::uint8_t const> bytes_;
};

template <class Element>
Element* one_of(std::vector<Element>& elements, Choices& choices) {
  auto const which = static_cast<std::size_t>(choices.below(8));
  return which < elements.size() ? &elements[which] : nullptr;
}

/// Planes that no optimizer has, and some that one has.
void change_planes(StateLayout& layout, Choices& choices) {
  constexpr std::array types{PlaneType::fp32, PlaneType::bf16, PlaneType::signed8,
                             PlaneType::unsigned8};
  auto const any_type = [&] { return types[static_cast<std::size_t>(choices.below(4))]; };
  auto const any_divisor = [&] { return std::int64_t{1} << choices.below(13); };
  std::vector<Plane> planes = layout.planes();
  Plane& plane = planes[static_cast<std::size_t>(choices.below(std::ssize(planes)))];
  switch (choices.below(5)) {
    case 0:
      plane.type = any_type();
      break;
    case 1:
      plane.elements_per_value = any_divisor();
      break;
    case 2:
      plane.name = choices.name();
      break;
    case 3:
      planes.pop_back();
      break;
    default:
      planes.push_back({plane.name + "_scale", any_type(), any_divisor()});
  }
  layout = StateLayout{std::move(planes)};
}

void change_meta(Meta& meta, Choices& choices) {
  state::ModelShape& model = meta.model;
  std::array<std::int64_t*, 7> const numbers{
      &meta.step,    &meta.samples, &meta.bad_steps,       &meta.optimizer_step,
      &meta.threads, &meta.ranks,   &meta.loss_scale_steps};
  // The writer computes with these.
  std::array<std::int64_t*, 6> const sizes{&model.hidden,     &model.heads, &model.kv_heads,
                                           &model.ffn_hidden, &model.vocab, &model.max_sequence};
  std::array<double*, 4> const reals{&meta.loss_scale, &meta.learning_rate, &model.rope_theta,
                                     &model.norm_epsilon};
  auto const which = static_cast<std::size_t>(choices.below(22));
  if (which < numbers.size()) {
    *numbers[which] = choices.number();
  } else if (which < 13) {
    *sizes[which - 7] = choices.below(2) == 0 ? 1 + choices.byte() : 1 << 20;
  } else if (which < 17) {
    *reals[which - 13] = choices.real();
  } else if (which == 17) {
    model.layers = choices.below(9) - 1;
  } else if (which == 18) {
    model.family = state::Family::gpt2;
  } else if (which == 20) {
    change_planes(meta.state.layout, choices);
  } else if (which == 21) {
    (choices.below(2) == 0 ? meta.state.optimizer : meta.state.moments) = choices.name();
  } else {
    std::array<bool*, 4> const flags{&model.tied_head, &model.qkv_bias, &model.norms_after,
                                     &model.exact_gelu};
    bool& flag = *flags[static_cast<std::size_t>(choices.below(4))];
    flag = !flag;
  }
}

void change_master(Master& master, Choices& choices) {
  RankEntry* const rank = one_of(master.ranks, choices);
  ExtentEntry* const extent = one_of(master.extents, choices);
  switch (choices.below(7)) {
    case 0:
      (rank != nullptr ? rank->file : master.meta.program) = choices.name();
      break;
    case 1:
      (rank != nullptr ? rank->manifest : master.meta.configuration) = choices.name();
      break;
    case 2:
      (rank != nullptr ? rank->file_bytes : master.meta.ranks) = choices.number();
      break;
    case 3:
      (extent != nullptr ? extent->file : master.meta.program) = choices.name();
      break;
    case 4:
      (extent != nullptr ? extent->bytes : master.meta.step) = choices.number();
      break;
    case 5:
      master.ranks.push_back(master.ranks.front());
      break;
    default:
      master.extents.push_back({choices.name(), choices.number()});
  }
}

void change_subgroup(StoredSubgroup& subgroup, Choices& choices) {
  state::Piece* const piece = one_of(subgroup.pieces, choices);
  switch (choices.below(9)) {
    case 0:
      subgroup.offset = choices.number();
      break;
    case 1:
      subgroup.elements = choices.number();
      break;
    case 2:
      if (subgroup.own_file) {
        subgroup.own_file->name = choices.name();
      }
      break;
    case 3:
      if (subgroup.own_file) {
        subgroup.own_file->bytes = choices.number();
      }
      break;
    case 4:
      subgroup.own_file.emplace().name = choices.name();
      break;
    case 5:
      subgroup.own_file.reset();
      break;
    case 6:
      subgroup.pieces.push_back(
          {static_cast<int>(choices.number()), {choices.number(), choices.number()}, 0});
      break;
    case 7:
      subgroup.checksum = static_cast<std::uint64_t>(choices.number());
      break;
    default:
      if (piece != nullptr) {
        *piece = {static_cast<int>(choices.below(4)), {choices.number(), choices.number()}, 0};
      }
  }
}

void change_manifest(Manifest& manifest, Choices& choices) {
  StoredSubgroup* const subgroup = one_of(manifest.subgroups, choices);
  if (subgroup != nullptr) {
    change_subgroup(*subgroup, choices);
    return;
  }
  switch (choices.below(5)) {
    case 0:
      manifest.rank = static_cast<int>(choices.number());
      break;
    case 1:
      manifest.ranks = static_cast<int>(choices.number());
      break;
    case 2:
      manifest.file = choices.name();
      break;
    case 3:
      manifest.file_bytes = choices.number();
      break;
    default:
      manifest.subgroups.push_back(manifest.subgroups.empty() ? StoredSubgroup{}
                                                              : manifest.subgroups.front());
  }
}

void change_text(std::string& text, Choices& choices) {
  std::size_t const at = (choices.byte() + 256U * choices.byte()) % (text.size() + 1);
  std::size_t const left_out = choices.byte();
  std::string put;
  for (std::int64_t count = choices.below(32); count > 0; --count) {
    put.push_back(static_cast<char>(choices.byte()));
  }
  text.replace(at, left_out, put);
}

/// A type, perhaps not the one that stood there.
hid_t type_of_choice(Choices& choices) {
  switch (choices.below(8)) {
    case 0:
      return H5Tcopy(H5T_IEEE_F32LE);
    case 1:
      return H5Tcopy(H5T_STD_U64LE);
    case 2:
      return H5Tcopy(H5T_STD_I64BE);
    case 3:
      return H5Tvlen_create(H5T_STD_I64LE);
    case 4: {
      hid_t const text = H5Tcopy(H5T_C_S1);
      H5Tset_size(text, choices.byte() % 2 == 0
                            ? H5T_VARIABLE
                            : static_cast<std::size_t>(1 + 100 * choices.byte()));
      return text;
    }
    case 5:
      return H5Tcreate(H5T_COMPOUND, 64);
    case 6:
      return H5Tcreate(H5T_OPAQUE, static_cast<std::size_t>(1) << choices.below(24));
    default:
      return H5Tcopy(H5T_STD_I64LE);
  }
}

/// `most`: how many of the extents to choose from; an attribute takes memory.
hid_t space_of_choice(std::int64_t most, Choices& choices) {
  if (std::int64_t const kind = choices.below(6); kind < 2) {
    return H5Screate(kind == 0 ? H5S_SCALAR : H5S_NULL);
  }
  constexpr std::array<hsize_t, 8> extents{
      1, 2, 3, 4096, 8192, 24576, hsize_t{1} << 31, hsize_t{1} << 40};
  std::array<hsize_t, 2> const dims{
      extents[static_cast<std::size_t>(choices.below(most))],
      extents[static_cast<std::size_t>(choices.below(std::min<std::int64_t>(most, 6)))]};
  return H5Screate_simple(1 + static_cast<int>(choices.below(2)), dims.data(), nullptr);
}

hid_t layout_of_choice(hid_t space, std::string const& pipe, Choices& choices) {
  hid_t const layout = H5Pcreate(H5P_DATASET_CREATE);
  std::array<hsize_t, 2> const piece{2, 2};
  int const rank = H5Sget_simple_extent_ndims(space);
  switch (choices.below(8)) {
    case 0:
      H5Pset_alloc_time(layout, H5D_ALLOC_TIME_EARLY);
      H5Pset_fill_time(layout, H5D_FILL_TIME_NEVER);
      break;
    case 1:
      H5Pset_layout(layout, H5D_COMPACT);
      break;
    case 2:
      H5Pset_chunk(layout, rank, piece.data());
      break;
    case 3:
      H5Pset_chunk(layout, rank, piece.data());
      H5Pset_deflate(layout, 9);
      break;
    case 4:
      H5Pset_external(layout, pipe.c_str(), 0, H5F_UNLIMITED);
      break;
    case 5:
      H5Pset_virtual(layout, space, "../pipe", "/data", space);
      break;
    default:
      break;  // contiguous, nowhere yet
  }
  return layout;
}

void put_object(hid_t file, char const* name, std::string const& pipe, Choices& choices) {
  switch (choices.below(6)) {
    case 0:
      H5Lcreate_soft(choices.byte() % 2 == 0 ? name : "/rank/file", file, name, H5P_DEFAULT,
                     H5P_DEFAULT);
      return;
    case 1:
      H5Lcreate_external("../pipe", name, file, name, H5P_DEFAULT, H5P_DEFAULT);
      return;
    case 2:
      H5Gclose(H5Gcreate2(file, name, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
      return;
    case 3: {
      hid_t const type = type_of_choice(choices);
      H5Tcommit2(file, name, type, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
      H5Tclose(type);
      return;
    }
    default: {
      hid_t const type = type_of_choice(choices);
      hid_t const space = space_of_choice(8, choices);
      hid_t const layout = layout_of_choice(space, pipe, choices);
      hid_t const data = H5Dcreate2(file, name, type, space, H5P_DEFAULT, layout, H5P_DEFAULT);
      H5Dclose(data);
      H5Pclose(layout);
      H5Sclose(space);
      H5Tclose(type);
    }
  }
}

void put_attribute(hid_t file, Choices& choices) {
  constexpr std::array<char const*, 8> names{"format_version", "step",     "ranks",
                                             "configuration",  "checksum", "loss_scale",
                                             "model.family",   "extents"};
  char const* const name = names[static_cast<std::size_t>(choices.below(names.size()))];
  H5Adelete(file, name);
  hid_t const type = type_of_choice(choices);
  hid_t const space = space_of_choice(4, choices);
  hid_t const attribute = H5Acreate2(file, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
  if (attribute >= 0 && choices.byte() % 2 == 0 && H5Tget_class(type) == H5T_INTEGER &&
      H5Sget_simple_extent_npoints(space) == 1) {
    std::int64_t const value = choices.number();
    H5Awrite(attribute, H5T_NATIVE_INT64, &value);
  }
  H5Aclose(attribute);
  H5Sclose(space);
  H5Tclose(type);
}

/// HDF5 itself makes something else of an array or attribute of one file.
void change_file(Target& target, Choices& choices) {
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  hid_t const file = H5Fopen(target.path().c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
  if (file < 0) {
    return;
  }
  target.touch();
  constexpr std::array<char const*, 10> names{
      "/rank/file",  "/rank/file_bytes", "/rank/manifest", "/rank/manifest_checksum",
      "/rank",       "/extent",          "/extent/file",   "/extent/file_bytes",
      "/subgroup/0", "/checksum/1"};
  if (choices.byte() % 2 == 0) {
    put_attribute(file, choices);
  } else {
    char const* const name = names[static_cast<std::size_t>(choices.below(names.size()))];
    H5Ldelete(file, name, H5P_DEFAULT);
    put_object(file, name, std::filesystem::path{target.path()}.replace_filename("pipe").string(),
               choices);
  }
  H5Fclose(file);
  H5Eclear2(H5E_DEFAULT);
}

/// In the order in which a run writes: HDF5 files, manifests, master.
void forge(DamagedSample& sample, Choices& choices) {
  SampleCheckpoint const& good = sample.checkpoint;
  Master master = good.master;
  std::vector<Manifest> manifests = good.manifests;
  for (std::int64_t count = choices.below(3); count > 0; --count) {
    change_file(*sample.targets[1 + static_cast<std::size_t>(choices.below(2))], choices);
  }
  if (choices.below(2) == 0) {
    manifests[0].file_bytes = master.ranks[0].file_bytes =
        size_of(good.path("rank-0000.h5")).value();
    Bytes const bytes = size_of(good.path(master.extents[0].file)).value();
    manifests[0].subgroups[1].own_file->bytes = master.extents[0].bytes = bytes;
  }
  for (std::int64_t count = choices.below(4); count > 0; --count) {
    change_manifest(manifests[static_cast<std::size_t>(choices.below(2))], choices);
  }
  for (std::size_t r = 0; r < manifests.size(); ++r) {
    std::string text = to_json(manifests[r]);
    for (std::int64_t count = choices.below(3); count > 0; --count) {
      change_text(text, choices);
    }
    master.ranks[r].manifest_checksum = checksum_of(text);
    sample.targets[3 + 2 * r]->put(text);
  }
  for (std::int64_t count = choices.below(5); count > 0; --count) {
    choices.below(2) == 0 ? change_meta(master.meta, choices) : change_master(master, choices);
  }
  sample.targets[0]->remove();
  write_master(sample.targets[0]->path(), master, {});
  for (std::int64_t count = choices.below(3); count > 0; --count) {
    change_file(*sample.targets[0], choices);
  }
}

/// What read_master promises.
void expect_plausible(Master const& master) {
  auto const expect = [](bool good) {
    if (!good) {
      __builtin_trap();
    }
  };
  expect(master.meta.step >= 0 && master.meta.samples >= 0 && master.meta.optimizer_step >= 0);
  expect(std::ssize(master.ranks) == master.meta.ranks && !master.ranks.empty());
  for (std::size_t r = 0; r < master.ranks.size(); ++r) {
    expect(master.ranks[r].file == rank_file_name(static_cast<int>(r)));
    expect(master.ranks[r].manifest == manifest_name(static_cast<int>(r)));
    expect(master.ranks[r].file_bytes > 0);
  }
  for (ExtentEntry const& entry : master.extents) {
    expect(is_extent_file_name(entry.file) && entry.bytes > 0);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  static DamagedSample sample;
  static int const made = mkfifo(sample.checkpoint.path("pipe").c_str(), 0600) +
                          mkfifo(sample.checkpoint.path("../pipe").c_str(), 0600);
  if (made != 0) {
    __builtin_trap();
  }
  Choices choices{{data, size}};
  try {
    forge(sample, choices);
  } catch (std::exception const&) {
    // Our own writers, HDF5 and the JSON library refuse some of it.
  }
  try {
    expect_plausible(read_master(sample.checkpoint.directory()));
    sample.checkpoint.read_all(false);
  } catch (DataError const&) {
  } catch (IoError const&) {
  }
  sample.restore();
  return 0;
}
