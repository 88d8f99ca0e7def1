#include "data/dataset.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "base/error.hpp"
#include "base/random.hpp"
#include "base/units.hpp"

namespace offstage::data {
namespace {

/// The weights of the groups: sources without weights are one.
std::vector<double> weights_of(std::vector<OpenedSource> const& sources) {
  std::vector<double> weights;
  for (OpenedSource const& opened : sources) {
    if (opened.source.weight || weights.empty()) {
      weights.push_back(opened.source.weight.value_or(1.0));
    }
  }
  return weights;
}

/// Groups of equal length shall not be shuffled alike; the first one takes the seed itself.
std::uint64_t key_of(std::uint64_t seed, std::size_t group) {
  return seed + 0x9E3779B97F4A7C15U * static_cast<std::uint64_t>(group);
}

}  // namespace

std::int64_t count_windows(std::int64_t tokens, std::int64_t sequence, bool padded) {
  std::int64_t const followed = std::max<std::int64_t>(tokens, 1) - 1;
  return followed / sequence + (padded && followed % sequence != 0 ? 1 : 0);
}

std::vector<std::int64_t> spread_windows(std::int64_t windows,
                                         std::span<std::int64_t const> sizes) {
  auto const has_any = [](std::int64_t size) { return size > 0 ? std::int64_t{1} : 0; };
  std::int64_t firsts = 0;
  std::int64_t rest = 0;  // of all windows
  for (std::int64_t const size : sizes) {
    firsts += has_any(size);
    rest += size - has_any(size);
  }
  auto const wanted = static_cast<double>(std::clamp<std::int64_t>(windows - firsts, 0, rest));
  std::vector<std::int64_t> spread;
  std::int64_t before = 0;  // of the rest, in the sources so far
  std::int64_t taken = 0;   // of these
  for (std::int64_t const size : sizes) {
    before += size - has_any(size);
    std::int64_t const all =
        std::llround(wanted * (static_cast<double>(before) /
                               static_cast<double>(std::max<std::int64_t>(rest, 1))));
    spread.push_back(has_any(size) + all - taken);
    taken = all;
  }
  return spread;
}

Dataset::Dataset(std::vector<Source> const& sources, DatasetOptions const& options)
    : Dataset{[&] {
        OpenedSources opened{sources, options};
        opened.scan();
        return opened;
      }()} {}

Dataset::Dataset(OpenedSources opened)
    : options_{opened.options()}, mixture_{weights_of(opened.sources())} {
  require(options_.sequence >= 1, "Dataset: sequence must be positive");
  require(opened.unscanned().empty(), "Dataset: a file waits for its scan");
  for (OpenedSource& source : opened.sources()) {
    if (source.source.weight || groups_.empty()) {
      groups_.push_back({source.source.weight.value_or(1.0), windows()});
    }
    add(source);
    groups_.back().windows = windows() - groups_.back().first_window;
    sources_.push_back({source.source.path, windows()});
  }
  if (parts_.empty()) {
    throw DataError{
        fmt::format("{}: {} of no file has {}; hold out more (a document stays whole){}",
                    options_.key, options_.held_out.text(),
                    options_.rule == WindowRule::crossing
                        ? fmt::format("the {} tokens that train.sequence={} needs",
                                      options_.sequence + 1, options_.sequence)
                        : std::string{"a document of 2 tokens or more"},
                    options_.key == "data.valid" ? ", or name files for validation" : "")};
  }
}

void Dataset::add(OpenedSource& source) {
  std::string shortage;
  bool has_any = false;
  for (std::string const& path : source.empty) {
    shortage = fmt::format("{}={}: is empty; give a longer text", options_.key, path);
    short_files_.push_back(path);
  }
  for (OpenedFile& opened : source.files) {
    Part part = deal(std::move(opened));
    if (part.windows > 0) {
      has_any = true;
      part.group = groups_.size() - 1;
      part.source = sources_.size();
      part.first_window = windows();
      parts_.push_back(std::move(part));
      continue;
    }
    shortage = describe_shortage(part);
    short_files_.push_back(part.file->path());
  }
  if (options_.held_out.takes_end()) {
    short_files_.clear();  // an end that is too short is no surprise
  } else if (!shortage.empty() && !has_any) {
    throw DataError{shortage};
  }
}

Dataset::Part Dataset::deal(OpenedFile opened) const {
  Part part{std::move(opened)};
  if (options_.rule == WindowRule::crossing) {
    part.windows = count_windows(part.file->tokens(), options_.sequence, false);
  } else {
    options_.rule == WindowRule::apart ? deal_apart(part) : deal_whole(part);
  }
  if (part.windows > 0 && marks_documents()) {
    part.attended = attended_by(part);
  }
  return part;
}

std::string Dataset::describe_shortage(Part const& part) const {
  auto const* const or_less = options_.held_out.any() ? ", or hold out less" : "";
  if (options_.rule == WindowRule::crossing) {
    return fmt::format(
        "{}={}{}: has {} tokens, but {}={} needs at least {}; give a longer text or a shorter "
        "sequence{}",
        options_.key, part.file->path(), held_out_text(), part.file->tokens(),
        options_.named("train.sequence"), options_.sequence, options_.sequence + 1, or_less);
  }
  return fmt::format(
      "{}={}{}: has {} tokens in {} documents, but none of 2 tokens or more{}, the least that "
      "{}={} needs; give a longer text{}",
      options_.key, part.file->path(), held_out_text(), part.file->tokens(), part.documents.size(),
      part.mask ? " with one that its mask counts" : "", options_.named("data.cross-documents"),
      options_.rule == WindowRule::apart ? "false" : "whole", or_less);
}

std::string Dataset::held_out_text() const {
  return options_.held_out.any() ? ", " + options_.held_out.text() : std::string{};
}

std::int64_t Dataset::length_of(Part const& part, std::size_t document) const {
  bool const last = document + 1 == part.documents.size();
  return (last ? part.file->tokens() : part.documents[document + 1]) - part.documents[document];
}

void Dataset::deal_apart(Part& part) const {
  std::int64_t followed = 0;
  part.document_window.reserve(part.documents.size());
  for (std::size_t i = 0; i < part.documents.size(); ++i) {
    part.document_window.push_back(part.windows);
    auto const windows = count_windows(length_of(part, i), options_.sequence, true);
    part.windows += windows;
    part.cut += windows > 1 ? 1 : 0;
    followed += std::max<std::int64_t>(length_of(part, i), 1) - 1;
  }
  part.filled = static_cast<double>(followed) /
                static_cast<double>(std::max<std::int64_t>(part.windows, 1) * options_.sequence);
}

bool Dataset::has_target(Part const& part, Range const& tokens) {
  if (!part.mask || tokens.count < 2) {
    return tokens.count >= 2;
  }
  std::vector<std::uint8_t> mask(static_cast<std::size_t>(tokens.count) - 1);
  part.mask->read(tokens.first + 1, mask);
  return std::ranges::find(mask, 1) != mask.end();
}

void Dataset::deal_whole(Part& part) const {
  std::int64_t const most = options_.sequence + 1;
  std::int64_t tokens = 0;
  std::vector<std::int64_t> lengths;
  lengths.reserve(part.documents.size());
  for (std::size_t i = 0; i < part.documents.size(); ++i) {
    std::int64_t length = length_of(part, i);
    bool const is_cut = length > most;
    part.lost += std::max<std::int64_t>(0, length - most);
    length = std::min(length, most);
    // `data pack` left out what has no target; a cut may have taken it since.
    if (length < 2 || (is_cut && !has_target(part, {part.documents[i], length}))) {
      ++part.left_out;
      length = 0;
    } else if (is_cut) {
      ++part.cut;
    }
    tokens += length;
    lengths.push_back(length);
  }
  part.packed = pack_windows(lengths, most);
  part.windows = std::ssize(part.packed.begins) - 1;
  part.filled = static_cast<double>(tokens) /
                static_cast<double>(std::max<std::int64_t>(part.windows, 1) * most);
}

double Dataset::attended_by(Part const& part) const {
  auto const pairs = [&](std::int64_t length) {
    std::int64_t const most =
        options_.keys_seen > 0 ? std::min(options_.keys_seen, length) : length;
    return static_cast<double>(most) * static_cast<double>(2 * length - most + 1) / 2.0;
  };
  // So many windows from all over the file tell it well enough.
  std::int64_t const looked_at = std::min<std::int64_t>(part.windows, 10'000);
  double seen = 0.0;
  for (std::int64_t i = 0; i < looked_at; ++i) {
    for (Range const& range : documents_of(part, i * part.windows / looked_at)) {
      seen += pairs(range.count);
    }
  }
  return seen / (pairs(options_.sequence) * static_cast<double>(looked_at));
}

std::int64_t Dataset::windows() const noexcept {
  return parts_.empty() ? 0 : parts_.back().first_window + parts_.back().windows;
}

std::uint64_t Dataset::sampled_checksum(Part const& part) {
  constexpr std::int64_t last_place = 15;
  std::array<std::int32_t, 64> tokens{};
  std::array<std::uint8_t, 64> counts{};
  std::int64_t const all = part.file->tokens();
  auto const count = std::min(std::ssize(tokens), all);
  auto const here = std::span{tokens}.first(static_cast<std::size_t>(count));
  auto const counted = std::span{counts}.first(here.size());
  RunningChecksum checksum;
  for (std::int64_t place = 0; place <= last_place; ++place) {
    // From the first tokens to the last ones. In this order no product overflows.
    auto const first = place == last_place ? all - count : (all - count) / last_place * place;
    part.file->read(first, here);
    checksum.add(std::as_bytes(here));
    if (part.mask) {
      part.mask->read(first, counted);
      checksum.add(std::as_bytes(counted));
    }
  }
  return checksum.value();
}

double Dataset::share_of(Part const& part) const {
  double weights{};
  for (Group const& group : groups_) {
    weights += group.weight;
  }
  Group const& group = groups_[part.group];
  return group.weight / weights * static_cast<double>(part.windows) /
         static_cast<double>(group.windows);
}

std::vector<FileFacts> Dataset::files(Samples samples) const {
  bool const reads = samples == Samples::read;
  std::vector<FileFacts> facts;
  for (Part const& part : parts_) {
    auto documents = part.file->document_count();
    if (!documents && !part.documents.empty()) {
      documents = static_cast<std::int64_t>(part.documents.size());
    }
    facts.push_back({.path = part.file->path(),
                     .source = part.source,
                     .part = options_.held_out.text(),
                     .format = part.file->format(),
                     .type = part.file->type(),
                     .tokens = part.file->tokens(),
                     .documents = documents,
                     .windows = part.windows,
                     .share = share_of(part),
                     .counted = part.mask ? std::optional{part.mask->counted()} : std::nullopt,
                     .filled = part.filled,
                     .rule = options_.rule,
                     .cut = part.cut,
                     .lost = part.lost,
                     .left_out = part.left_out,
                     .attended = part.attended,
                     .ignores_separator = part.ignores_separator,
                     .doubt = reads ? part.file->doubt() : std::string{},
                     .checksum = reads ? sampled_checksum(part) : 0});
  }
  return facts;
}

double Dataset::attended() const {
  double sum = 0.0;
  for (Part const& part : parts_) {
    sum += share_of(part) * part.attended.value_or(1.0);
  }
  return sum;
}

std::int64_t Dataset::shuffled(std::int64_t sample, std::uint64_t seed) const {
  require(sample >= 0, "Dataset: negative sample");
  auto const [group, index] =
      groups_.size() == 1 ? Mixture::Pick{0, sample} : mixture_.pick(sample, seed);
  auto const count = static_cast<std::uint64_t>(groups_[group].windows);
  auto const i = static_cast<std::uint64_t>(index);
  auto const window = offstage::shuffled(i % count, count, key_of(seed, group), i / count);
  return groups_[group].first_window + static_cast<std::int64_t>(window);
}

std::vector<Dataset::Range> Dataset::ranges_of(Part const& part, std::int64_t window) const {
  std::int64_t const most = options_.sequence + 1;
  if (options_.rule == WindowRule::crossing) {
    return {{window * options_.sequence, most}};
  }
  if (options_.rule == WindowRule::apart) {
    return {range_apart(part, window)};
  }
  auto const w = static_cast<std::size_t>(window);
  std::vector<Range> ranges;
  for (auto i = part.packed.begins[w]; i < part.packed.begins[w + 1]; ++i) {
    auto const document =
        static_cast<std::size_t>(part.packed.documents[static_cast<std::size_t>(i)]);
    ranges.push_back({part.documents[document], std::min(most, length_of(part, document))});
  }
  return ranges;
}

Dataset::Range Dataset::range_apart(Part const& part, std::int64_t window) const {
  // The last document that begins at this window or before: one without windows shares the number
  // of the one behind it.
  auto const after = std::ranges::upper_bound(part.document_window, window);
  auto const document = static_cast<std::size_t>(after - part.document_window.begin()) - 1;
  auto const past = (window - part.document_window[document]) * options_.sequence;
  return {part.documents[document] + past,
          std::min(options_.sequence + 1, length_of(part, document) - past)};
}

std::vector<Dataset::Range> Dataset::documents_of(Part const& part, std::int64_t window) const {
  std::vector<Range> documents;
  std::int64_t end = 0;  // of those that were found
  auto const add = [&](std::int64_t count) {
    documents.push_back({end, std::min(count, options_.sequence - end)});
    end += documents.back().count;
  };
  if (options_.rule == WindowRule::crossing) {
    std::int64_t const begin = window * options_.sequence;
    auto next = std::ranges::upper_bound(part.documents, begin);
    for (; next != part.documents.end() && *next - begin < options_.sequence; ++next) {
      add(*next - begin - end);
    }
  } else {
    for (Range const& range : ranges_of(part, window)) {
      add(range.count);
    }
  }
  if (end < options_.sequence) {
    add(options_.sequence - end);
  }
  return documents;
}

void Dataset::fill(Part const& part, Range const& range, std::int64_t place,
                   std::span<std::int32_t> tokens, std::span<std::int32_t> targets) const {
  auto const count = static_cast<std::size_t>(range.count);
  std::vector<std::int32_t> read(count);
  part.file->read(range.first, read);
  std::vector<std::uint8_t> counts(count, 1);
  if (part.mask) {
    part.mask->read(range.first, counts);
  }
  auto const begin = static_cast<std::size_t>(place);
  for (std::size_t i = 0; i + 1 < count; ++i) {
    tokens[begin + i] = read[i];
    targets[begin + i] = counts[i + 1] != 0 ? read[i + 1] : ignored_target;
  }
  // A document's end is context of the documents behind it, and without a target of its own.
  if (options_.rule == WindowRule::whole && begin + count <= tokens.size()) {
    tokens[begin + count - 1] = read.back();
  }
}

TokenBatch Dataset::batch(std::span<std::int64_t const> windows) const {
  TokenBatch result;
  result.batch = static_cast<std::int64_t>(windows.size());
  result.sequence = options_.sequence;
  auto const row = static_cast<std::size_t>(options_.sequence);
  result.tokens.resize(windows.size() * row);
  result.targets.resize(windows.size() * row, ignored_target);
  result.begins.resize(marks_documents() ? windows.size() * row : 0);
  for (std::size_t i = 0; i < windows.size(); ++i) {
    require(windows[i] >= 0 && windows[i] < this->windows(), "Dataset: no such window");
    auto const after = std::ranges::upper_bound(parts_, windows[i], {}, &Part::first_window);
    Part const& part = *std::prev(after);
    std::int64_t place = 0;
    for (Range const& range : ranges_of(part, windows[i] - part.first_window)) {
      fill(part, range, place, std::span{result.tokens}.subspan(i * row, row),
           std::span{result.targets}.subspan(i * row, row));
      place += range.count;
    }
    if (marks_documents()) {
      auto const begins = std::span{result.begins}.subspan(i * row, row);
      for (Range const& document : documents_of(part, windows[i] - part.first_window)) {
        std::ranges::fill(begins.subspan(static_cast<std::size_t>(document.first),
                                         static_cast<std::size_t>(document.count)),
                          static_cast<std::int32_t>(document.first));
      }
    }
  }
  return result;
}

void fill_up(TokenBatch& batch, std::int64_t rows) {
  auto const size = static_cast<std::size_t>(rows * batch.sequence);
  batch.batch = rows;
  batch.tokens.resize(size);
  batch.targets.resize(size, ignored_target);
  batch.begins.resize(batch.begins.empty() ? 0 : size);
}

std::int64_t counted_targets(TokenBatch const& batch) {
  return std::ranges::count_if(batch.targets, [](std::int32_t t) { return t != ignored_target; });
}

}  // namespace offstage::data
