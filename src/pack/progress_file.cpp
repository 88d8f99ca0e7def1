#include "pack/progress_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <span>

#include "base/error.hpp"
#include "base/file_lock.hpp"
#include "base/log.hpp"
#include "base/printable.hpp"
#include "base/regular_file.hpp"
#include "data/input_file.hpp"
#include "data/part_file.hpp"
#include "platform/aio/file.hpp"

namespace offstage::pack {
namespace {

using Json = nlohmann::json;

constexpr char const* anew = "or remove the .part files to begin anew";

Json to_json(Request const& request) {
  Json options = Json::object();
  for (auto const& [name, value] : request) {
    options[name] = printable(value);
  }
  return {{"pack", options}};
}

Json to_json(Noticed const& noticed) {
  return {{"count", noticed.count}, {"first", printable(noticed.first)}};
}

Noticed noticed_from(Json const& object) {
  return {object.at("count"), object.at("first")};
}

Json to_json(ProgressFile::Saved const& saved) {
  auto const& [place, read, text, encoded, total, conversations, replaced, bad, specials] =
      saved.progress;
  return {{"text", place.text},
          {"documents", place.documents},
          {"checksum", place.checksum},
          {"bytes-read", read},
          {"bytes-of-text", text},
          {"bytes-encoded", encoded},
          {"tokens", saved.written.tokens},
          {"documents-written", saved.written.documents},
          {"counted", conversations.counted},
          {"without", to_json(conversations.without)},
          {"too-long", conversations.too_long},
          {"straddling", conversations.straddling},
          {"unused", conversations.unused},
          {"replaced", to_json(replaced)},
          {"bad", to_json(bad)},
          {"specials", to_json(specials)},
          {"whole", saved.is_whole}};
}

ProgressFile::Saved saved_from(Json const& line) {
  ProgressFile::Saved saved;
  auto& [place, read, text, encoded, total, conversations, replaced, bad, specials] =
      saved.progress;
  line.at("text").get_to(place.text);
  line.at("documents").get_to(place.documents);
  line.at("checksum").get_to(place.checksum);
  line.at("bytes-read").get_to(read);
  line.at("bytes-of-text").get_to(text);
  line.at("bytes-encoded").get_to(encoded);
  line.at("tokens").get_to(saved.written.tokens);
  line.at("documents-written").get_to(saved.written.documents);
  line.at("counted").get_to(conversations.counted);
  conversations.without = noticed_from(line.at("without"));
  line.at("too-long").get_to(conversations.too_long);
  line.at("straddling").get_to(conversations.straddling);
  line.at("unused").get_to(conversations.unused);
  replaced = noticed_from(line.at("replaced"));
  bad = noticed_from(line.at("bad"));
  specials = noticed_from(line.at("specials"));
  line.at("whole").get_to(saved.is_whole);
  return saved;
}

std::vector<NotedText> note(std::vector<Text> const& texts) {
  std::vector<NotedText> noted;
  for (Text const& text : texts) {
    data::InputFile const file{text.path, "--from"};
    noted.push_back({printable(text.path), file.size(), file.modified()});
  }
  return noted;
}

Json to_json(NotedText const& text) {
  return {{"path", text.path}, {"size", text.size}, {"modified", text.modified}};
}

/// The contents of all lines.
struct Contents {
  Json request;
  std::vector<NotedText> texts;
  std::optional<ProgressFile::Saved> saved;
};

void add(Json line, Contents& contents) {
  if (line.contains("pack")) {
    contents.request = std::move(line);
    return;
  }
  auto const saved = saved_from(line);
  for (Json const& text : line.at("read")) {
    contents.texts.push_back({text.at("path"), text.at("size"), text.at("modified")});
  }
  contents.saved = saved;
}

/// Reads the lines. Drops a last line that is not whole, because the system stopped while it was
/// written.
/// Errors: nlohmann's.
Contents parse(std::string& lines) {
  Contents contents;
  lines.resize(lines.rfind('\n') + 1);
  for (std::size_t begin = 0; begin < lines.size();) {
    auto const end = lines.find('\n', begin) + 1;
    bool const is_last = end == lines.size() && begin > 0;
    auto line = Json::parse(lines.substr(begin, end - begin), nullptr, !is_last);
    if (line.is_discarded()) {
      lines.resize(begin);
      break;
    }
    add(std::move(line), contents);
    begin = end;
  }
  return contents;
}

void check_request(std::string const& path, Json const& before, Json const& now) {
  for (auto const& [name, value] : now.at("pack").items()) {
    auto const old = before.at("pack").value(name, "");
    auto const& wanted = value.get_ref<std::string const&>();
    if (old != wanted) {
      throw UsageError{
          fmt::format("{}: this pack was begun with {} {}, not {}; go on with that, {}", path, name,
                      printable_name(old), printable_name(wanted), anew)};
    }
  }
}

void check_path(std::string const& path, std::size_t number, std::string const& before,
                std::string const& now) {
  if (before != now) {
    throw UsageError{fmt::format(
        "{}: text {} of --from was {} for this pack, and is {} now; go on with that, {}", path,
        number, printable_name(before), printable_name(now), anew)};
  }
}

void check_text(std::string const& path, NotedText const& before, NotedText const& now) {
  if (now.size != before.size || now.modified != before.modified) {
    throw DataError{fmt::format(
        "--from={} has changed since it was packed; give back the file as it was, {} ({})",
        printable_name(now.path), anew, path)};
  }
}

}  // namespace

ProgressFile::ProgressFile(std::string const& prefix, Request const& request,
                           std::vector<Text> const& texts)
    : path_{data::part_of(prefix + ".pack")}, texts_{note(texts)} {
  try {
    open();
    read(request);
  } catch (...) {
    close(descriptor_);
    throw;
  }
}

ProgressFile::~ProgressFile() {
  if (descriptor_ < 0) {
    return;
  }
  if (!saved_) {
    unlink(path_.c_str());
  }
  close(descriptor_);
}

std::optional<data::Written> ProgressFile::begun() const {
  return saved_ ? saved_->written : was_there_ ? std::optional{data::Written{}} : std::nullopt;
}

void ProgressFile::open() {
  for (;;) {
    descriptor_ =
        open_regular("data pack: cannot open", path_, O_RDWR | O_CREAT, mode_of_lock(path_));
    auto const lock = lock_file(descriptor_, "data pack: cannot lock", path_);
    if (lock == FileLock::elsewhere) {
      throw LockedError{fmt::format(
          "{}: another process packs into these files; wait for it or use another prefix", path_)};
    }
    if (lock == FileLock::missing) {
      log::warning("{}: the file system has no locks; make sure that no other process packs there",
                   path_);
    }
    // Another pack may have ended meanwhile and removed it.
    if (is_file_at(path_, descriptor_)) {
      return;
    }
    close(std::exchange(descriptor_, -1));
  }
}

std::string ProgressFile::contents() const {
  struct stat status {};
  if (fstat(descriptor_, &status) != 0) {
    throw IoError{"cannot look at", path_, errno};
  }
  std::string text(static_cast<std::size_t>(status.st_size), '\0');
  if (!text.empty()) {
    data::InputFile{path_, ""}.read(0, std::as_writable_bytes(std::span{text}));
  }
  return text;
}

void ProgressFile::read(Request const& request) {
  auto lines = contents();
  Contents before;
  try {
    before = parse(lines);
  } catch (Json::exception const&) {
    throw DataError{fmt::format(
        "{} is no progress of a pack, or is damaged; remove it and the .part files beside it",
        path_)};
  }
  size_ = std::ssize(lines);
  was_there_ = !before.request.is_null();
  if (!before.saved) {
    begin(request);
    return;
  }
  check_request(path_, before.request, to_json(request));
  auto const now = [&](std::size_t i) { return i < texts_.size() ? texts_[i].path : "none"; };
  for (std::size_t i = 0; i < before.texts.size(); ++i) {
    check_path(path_, i + 1, before.texts[i].path, now(i));
    check_text(path_, before.texts[i], texts_[i]);
  }
  auto const& place = before.saved->progress.place;
  if (place.documents > 0 && place.text >= texts_.size()) {
    check_path(path_, place.text + 1, "a file that was read in part", now(place.text));
  }
  if (before.saved->is_whole && texts_.size() > before.texts.size()) {
    check_path(path_, before.texts.size() + 1, "none", texts_[before.texts.size()].path);
  }
  noted_ = before.texts.size();
  saved_ = before.saved;
}

void ProgressFile::begin(Request const& request) {
  try {
    append(to_json(request).dump());
  } catch (...) {
    if (!was_there_) {
      unlink(path_.c_str());
    }
    throw;
  }
}

void ProgressFile::save(Saved const& saved) {
  Json line = to_json(saved);
  auto& texts = line["read"] = Json::array();
  for (; noted_ < saved.progress.place.text; ++noted_) {
    texts.push_back(to_json(texts_[noted_]));
  }
  append(line.dump());
  saved_ = saved;
}

void ProgressFile::append(std::string line) {
  line += '\n';
  if (write_fully(descriptor_, std::as_bytes(std::span{line}), size_) < std::ssize(line)) {
    throw IoError{"cannot write", path_, errno};
  }
  size_ += std::ssize(line);
  // Behind the end may be the rest of a longer line that was not whole.
  if (ftruncate(descriptor_, size_) != 0 || TEMP_FAILURE_RETRY(fsync(descriptor_)) != 0) {
    throw IoError{"cannot write", path_, errno};
  }
  aio::sync_name(path_);
}

void ProgressFile::remove() {
  if (unlink(path_.c_str()) != 0) {
    throw IoError{"cannot remove", path_, errno};
  }
  close(std::exchange(descriptor_, -1));
}

}  // namespace offstage::pack
