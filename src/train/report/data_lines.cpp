#include "train/report/data_lines.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.hpp"

namespace offstage::train {
namespace {

/// The mask in words: ", 41.2 % of which count"; empty without a mask.
std::string describe_mask(data::FileFacts const& file) {
  return file.counted
             ? fmt::format(", {:.1f} % of which count", 100.0 * static_cast<double>(*file.counted) /
                                                            static_cast<double>(file.tokens))
             : std::string{};
}

std::string describe(data::FileFacts const& file, char const* key) {
  std::string const documents = file.documents ? fmt::format("{} document{}", *file.documents,
                                                             *file.documents == 1 ? "" : "s")
                                               : std::string{"documents not told apart"};
  return fmt::format("{} {}{}{}: {}, {}, {} tokens{}, {}", key, file.path,
                     file.part.empty() ? "" : ", ", file.part, name_of(file.format),
                     name_of(file.type), file.tokens, describe_mask(file), documents);
}

/// The part of a file's tokens that no window has, because documents are cut.
double lost_part(data::FileFacts const& file) {
  return static_cast<double>(file.lost) / static_cast<double>(file.tokens);
}

/// The packing in words: "; 97.1 % of positions filled, 3 documents cut"; empty if windows cross
/// documents.
std::string describe_packing(data::FileFacts const& file) {
  if (!file.filled) {
    return {};
  }
  auto text = fmt::format("; {:.1f} % of positions filled", 100.0 * *file.filled);
  if (file.cut > 0) {
    text += fmt::format(", {} document{} {}", file.cut, file.cut == 1 ? "" : "s",
                        file.rule == data::WindowRule::apart ? "parted" : "cut");
  }
  if (file.lost > 0) {
    text += fmt::format(" ({:.1f} % of the tokens lost)", 100.0 * lost_part(file));
  }
  if (file.left_out > 0) {
    text += fmt::format(", {} left out without a target", file.left_out);
  }
  return text;
}

/// The share of attention in words: "; tokens see their documents alone, 12.3 % of a sequence's
/// pairs".
std::string describe_attention(data::FileFacts const& file) {
  return file.attended
             ? fmt::format("; tokens see their documents alone, {:.1f} % of a sequence's pairs",
                           100.0 * *file.attended)
             : std::string{};
}

}  // namespace

std::vector<std::string> describe_training_files(std::vector<data::FileFacts> const& files,
                                                 config::TrainConfig const& train) {
  auto const samples = static_cast<double>(train.steps) * static_cast<double>(train.global_batch);
  std::vector<std::string> lines;
  for (data::FileFacts const& file : files) {
    double const epochs = samples * file.share / static_cast<double>(file.windows);
    lines.push_back(fmt::format(
        "{}; {:.3g} epochs in {} steps of {} sequence{}{}{}", describe(file, "data.train"), epochs,
        train.steps, train.global_batch, train.global_batch == 1 ? "" : "s",
        files.size() > 1 ? fmt::format(", {:.3g} % of the samples", 100.0 * file.share)
                         : std::string{},
        describe_packing(file) + describe_attention(file)));
  }
  return lines;
}

std::vector<std::string> correct_epochs(std::vector<data::FileFacts> const& files,
                                        config::TrainConfig const& train, std::int64_t done,
                                        std::int64_t tokens) {
  std::vector<std::string> lines;
  std::int64_t const step_tokens = train.global_batch * train.sequence;
  if (tokens == done * step_tokens || done >= train.steps) {
    return lines;
  }
  auto const all = static_cast<double>(tokens + (train.steps - done) * step_tokens) /
                   static_cast<double>(train.sequence);
  for (data::FileFacts const& file : files) {
    lines.push_back(
        fmt::format("data.train {}: {:.3g} epochs until step {}, as earlier steps had another "
                    "train.global-batch or train.sequence",
                    file.path, all * file.share / static_cast<double>(file.windows), train.steps));
  }
  return lines;
}

std::vector<std::string> describe_validation_files(std::vector<data::FileFacts> const& files,
                                                   std::int64_t windows) {
  std::vector<std::int64_t> sizes;
  for (data::FileFacts const& file : files) {
    sizes.resize(std::max(sizes.size(), file.source + 1));
    sizes[file.source] += file.windows;
  }
  auto left = data::spread_windows(windows, sizes);
  std::vector<std::string> lines;
  for (data::FileFacts const& file : files) {
    auto const taken = std::min(left[file.source], file.windows);
    left[file.source] -= taken;
    lines.push_back(fmt::format("{}; {} of {} windows{}", describe(file, "data.valid"), taken,
                                file.windows, describe_packing(file) + describe_attention(file)));
  }
  return lines;
}

std::vector<std::string> describe_data(data::Dataset const& train,
                                       std::vector<data::FileFacts> const& train_files,
                                       data::Dataset const* valid,
                                       std::vector<data::FileFacts> const& valid_files,
                                       config::RunConfig const& config) {
  auto const warn = [](std::vector<std::string> const& doubts) {
    for (std::string const& doubt : doubts) {
      log::warning("{}", doubt);
    }
  };
  auto lines = describe_training_files(train_files, config.train);
  for (config::Skip const& skip : config.data.skips) {
    lines.push_back(
        fmt::format("data.skip: {} sequences left out behind step {}{}", skip.sequences, skip.step,
                    skip.step >= config.train.steps ? ", which is none of this run" : ""));
  }
  warn(doubts_about(train_files, train.short_files(), "data.train"));
  if (valid != nullptr) {
    auto const more = describe_validation_files(
        valid_files, windows_per_validation(config.train, valid->windows()));
    lines.insert(lines.end(), more.begin(), more.end());
    warn(doubts_about(valid_files, valid->short_files(), "data.valid"));
    warn(doubts_about_both(train_files, valid_files));
  }
  return lines;
}

namespace {

/// The doubt about conversations that windows part or cut; empty: there is none.
std::string doubt_about_cuts(data::FileFacts const& file, std::string const& option) {
  constexpr double many = 0.1;
  auto const documents = file.documents.value_or(0);
  switch (file.rule) {
    case data::WindowRule::crossing:
      return documents > 1 ? fmt::format(
                                 "conversations are cut where a sequence ends, so that "
                                 "answers stand without their questions; {}=whole "
                                 "keeps them whole",
                                 option)
                           : std::string{};
    case data::WindowRule::apart:
      return file.cut > 0 ? fmt::format(
                                "{} of {} conversations are longer than a sequence and are "
                                "parted, so that answers stand without their "
                                "questions; take longer sequences, or {}=whole, which cuts "
                                "them",
                                file.cut, documents, option)
                          : std::string{};
    case data::WindowRule::whole:
      break;
  }
  bool const is_doubtful =
      static_cast<double>(file.cut + file.left_out) > many * static_cast<double>(documents);
  return is_doubtful ? fmt::format(
                           "of {} conversations {} are longer than a sequence and are cut, "
                           "and {} are left out; take longer sequences",
                           documents, file.cut, file.left_out)
                     : std::string{};
}

}  // namespace

std::vector<std::string> doubts_about(std::vector<data::FileFacts> const& files,
                                      std::vector<std::string> const& short_files,
                                      std::string const& key) {
  std::vector<std::string> lines;
  bool const is_option = key.starts_with("--");
  bool const any_mask = std::ranges::any_of(
      files, [](data::FileFacts const& file) { return file.counted.has_value(); });
  for (data::FileFacts const& file : files) {
    if (!file.doubt.empty()) {
      lines.push_back(fmt::format("{}={}: {}", key, file.path, file.doubt));
    }
    if (auto const doubt =
            doubt_about_cuts(file, is_option ? "--cross-documents" : "data.cross-documents");
        file.counted && !doubt.empty()) {
      lines.push_back(fmt::format("{}={}: {}", key, file.path, doubt));
    }
    constexpr double much = 0.05;
    if (!file.counted && lost_part(file) > much) {
      lines.push_back(fmt::format(
          "{}={}: {} of {} documents are longer than a sequence and are cut, so that {:.1f} % of "
          "the tokens are never used; take longer sequences, or {}=false, which parts documents",
          key, file.path, file.cut, file.documents.value_or(0), 100.0 * lost_part(file),
          is_option ? "--cross-documents" : "data.cross-documents"));
    }
    if (file.ignores_separator) {
      lines.push_back(fmt::format(
          "{}={}: {} data stores where documents end, so that {} does nothing there", key,
          file.path, name_of(file.format), is_option ? "--separator" : "data.separator"));
    }
    if (any_mask && !file.counted) {
      lines.push_back(fmt::format(
          "{}={}: has no mask beside it, so that all its tokens count; other files have one", key,
          file.path));
    }
  }
  if (!short_files.empty()) {
    lines.push_back(fmt::format(
        "{}={}: left out, as it is too short for a sequence{}", key, short_files.front(),
        short_files.size() == 1 ? std::string{}
                                : fmt::format("; and {} more", short_files.size() - 1)));
  }
  return lines;
}

std::vector<std::string> doubts_about_both(std::vector<data::FileFacts> const& train,
                                           std::vector<data::FileFacts> const& valid) {
  std::vector<std::string> lines;
  for (data::FileFacts const& file : valid) {
    auto const same = std::ranges::find_if(train, [&](data::FileFacts const& other) {
      return other.tokens == file.tokens && other.checksum == file.checksum;
    });
    if (same != train.end()) {
      lines.push_back(fmt::format(
          "data.valid={}: has the tokens of data.train={}, so that its loss says nothing of texts "
          "that the model has not seen; data.valid=2% holds out a part of data.train",
          file.path, same->path));
    }
  }
  return lines;
}

std::int64_t windows_per_validation(config::TrainConfig const& train, std::int64_t all) {
  // Micro-batches whose product would not fit into 64 bits mean all windows, too.
  bool const takes_all = train.valid_batches == 0 || train.valid_batches > all / train.micro_batch;
  return takes_all ? all : train.valid_batches * train.micro_batch;
}

}  // namespace offstage::train
