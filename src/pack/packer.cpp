#include "pack/packer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "base/error.hpp"
#include "base/thread.hpp"
#include "data/byte_stream.hpp"
#include "data/loss_mask.hpp"
#include "pack/conversation.hpp"
#include "pack/json_field.hpp"
#include "parquet/rows.hpp"
#include "tokens/unicode.hpp"

namespace offstage::pack {
namespace {

constexpr Bytes batch_bytes = MiB;
constexpr std::size_t batch_documents = 16'384;
constexpr Bytes bytes_per_thread = 4 * MiB;

/// Documents that are encoded together, then their tokens.
struct Batch {
  Text const* text{};
  std::int64_t first_line{};  ///< line of the first document, if lines are documents
  std::vector<data::TextDocuments::Document> documents;
  Bytes bytes{};        ///< bytes of the documents
  Place behind;         ///< the place behind the documents
  Bytes read_so_far{};  ///< bytes of all files

  Bytes encoded{};  ///< bytes of text that became tokens
  std::vector<std::int32_t> tokens;
  std::vector<std::uint8_t> mask;  ///< the tokens' mask; empty without a template
  std::vector<std::size_t> ends;   ///< ends of the documents, in tokens
  Conversations conversations;
  Noticed replaced;
  Noticed bad;
  Noticed specials;
  std::exception_ptr error;
  bool taken{};
  bool done{};
};

void notice(std::int64_t count, std::string const& first, Noticed& all) {
  all.first = all.count == 0 ? first : all.first;
  all.count += count;
}

void add_unused(std::string const& name, std::int64_t count, Conversations& all) {
  if (all.unused.size() < Conversations::most_unused || all.unused.contains(name)) {
    all.unused[name] += count;
  }
}

/// Encodes batches into tokens.
class Worker {
 public:
  Worker(Task const& task, data::Tokenizer const& tokenizer)
      : task_{task}, tokenizer_{tokenizer}, encoder_{tokenizer.encoder()} {
    if (task.form != nullptr) {
      conversations_.emplace(*task.form, tokenizer);
    }
  }

  void run(Batch& batch) {
    for (std::size_t i = 0; i < batch.documents.size(); ++i) {
      auto& document = batch.documents[i];
      bool const is_json = batch.text->documents == data::Documents::json;
      if (is_json) {
        auto const line = batch.first_line + static_cast<std::int64_t>(i);
        take_from_json(document.text, line, batch);
        document.end.clear();
      } else if (!tokenizer_.takes_bytes()) {
        look_for_invalid(batch, i);
      }
      if (!conversations_) {
        look_for_specials(document.text, batch, [&] { return place_of(batch, i); });
        encode(document, batch);
      }
      batch.ends.push_back(batch.tokens.size());
      document = {};
    }
  }

 private:
  /// Takes the text, or the conversation, out of a line of JSON. A blank or bad one leaves no text.
  void take_from_json(std::string& text, std::int64_t line, Batch& batch) {
    std::string const json = std::exchange(text, {});
    if (json.find_first_not_of(" \t\r") == std::string::npos) {
      return;
    }
    auto const place = fmt::format("{}={}: line {}", task_.key, batch.text->path, line);
    try {
      if (conversations_) {
        add_conversation(json, place, batch);
      } else {
        text = text_field(json, task_.field, place);
      }
    } catch (DataError const& error) {
      notice(1, error.what(), batch.bad);
    }
  }
  void add_conversation(std::string_view line, std::string const& place, Batch& batch) {
    auto const conversation = read_conversation(line, task_.field, *task_.form, place);
    for (Message const& message : conversation.messages) {
      look_for_specials(message.content, batch, [&] { return place; });
    }
    auto const encoded = conversations_->encode(conversation.messages);
    auto const counted = std::ranges::count(encoded.mask, 1);
    // The first token is no target: nothing comes before it.
    bool const learns = counted > (!encoded.mask.empty() && encoded.mask.front() == 1 ? 1 : 0);
    auto& all = batch.conversations;
    for (std::string const& name : conversation.unused) {
      add_unused(name, 1, all);
    }
    if (!learns) {
      notice(1, place, all.without);
    } else if (task_.longest > 0 && std::ssize(encoded.tokens) > task_.longest) {
      ++all.too_long;
    } else {
      all.counted += counted;
      all.straddling += encoded.straddling;
      batch.tokens.insert(batch.tokens.end(), encoded.tokens.begin(), encoded.tokens.end());
      batch.mask.insert(batch.mask.end(), encoded.mask.begin(), encoded.mask.end());
    }
  }
  static std::string place_of(Batch const& batch, std::size_t i) {
    auto const kind = batch.text->documents;
    if (kind == data::Documents::file) {
      return batch.text->path;
    }
    bool const is_line = kind == data::Documents::line || kind == data::Documents::json;
    return fmt::format("{}, {} {}", batch.text->path, is_line ? "line" : "document",
                       batch.first_line + static_cast<std::int64_t>(i));
  }
  /// Counts the bytes of document i that are no UTF-8. Those of JSON are errors.
  static void look_for_invalid(Batch& batch, std::size_t i) {
    auto const found = tokens::find_invalid(batch.documents[i].text);
    if (found.bytes > 0) {
      notice(found.bytes, fmt::format("{}, byte {}", place_of(batch, i), found.first + 1),
             batch.replaced);
    }
  }
  /// `place`: returns the text's place, for the first find.
  template <typename PlaceOf>
  void look_for_specials(std::string_view text, Batch& batch, PlaceOf const& place) {
    if (auto const found = tokenizer_.specials_in(text); found.count > 0) {
      notice(found.count, fmt::format("{} in {}", tokenizer_.name_of(found.first), place()),
             batch.specials);
    }
  }
  void encode(data::TextDocuments::Document& document, Batch& batch) {
    auto& tokens = batch.tokens;
    bool const has_text = !document.text.empty();
    if (!task_.end) {
      document.text += document.end;
    }
    if (document.text.empty()) {
      return;
    }
    batch.encoded += static_cast<Bytes>(document.text.size());
    tokens.insert(tokens.end(), task_.frame.before.begin(), task_.frame.before.end());
    encoder_->encode(document.text, tokens);
    tokens.insert(tokens.end(), task_.frame.behind.begin(), task_.frame.behind.end());
    // The frame may end with that token already.
    bool const ended = !task_.frame.behind.empty() && tokens.back() == task_.end;
    if (task_.end && has_text && !ended) {
      tokens.push_back(*task_.end);
    }
  }

  Task const& task_;
  data::Tokenizer const& tokenizer_;
  std::unique_ptr<data::Encoder> encoder_;
  std::optional<ConversationEncoder> conversations_;
};

/// Batches between the thread that reads, those that encode and the one that writes.
class Line {
 public:
  explicit Line(Bytes most) : most_{most} {}

  /// Waits for room and adds a batch. Returns false if nobody wants it any more.
  bool put(std::unique_ptr<Batch> batch) {
    std::unique_lock lock{mutex_};
    changed_.wait(lock,
                  [&] { return stopped_ || batches_.empty() || bytes_ + batch->bytes <= most_; });
    bytes_ += batch->bytes;
    batches_.push_back(std::move(batch));
    changed_.notify_all();
    return !stopped_;
  }
  void end(std::exception_ptr error) {
    std::lock_guard const lock{mutex_};
    ended_ = true;
    error_ = std::move(error);
    changed_.notify_all();
  }
  /// The next batch to encode; null at the end.
  Batch* take() {
    std::unique_lock lock{mutex_};
    for (;;) {
      if (stopped_) {
        return nullptr;
      }
      for (auto const& batch : batches_) {
        if (!batch->taken) {
          batch->taken = true;
          return batch.get();
        }
      }
      if (ended_) {
        return nullptr;
      }
      changed_.wait(lock);
    }
  }
  void finish(Batch& batch) {
    std::lock_guard const lock{mutex_};
    batch.done = true;
    changed_.notify_all();
  }
  /// The next batch to write, in the order of put(); null at the end. Calls on_wait() some times a
  /// second while there is none.
  std::unique_ptr<Batch> get(std::function<void()> const& on_wait) {
    constexpr std::chrono::milliseconds between_calls{200};
    std::unique_lock lock{mutex_};
    auto const comes = [&] { return batches_.empty() ? ended_ : batches_.front()->done; };
    while (!changed_.wait_for(lock, between_calls, comes)) {
      on_wait();
    }
    if (batches_.empty()) {
      if (error_) {
        std::rethrow_exception(error_);
      }
      return nullptr;
    }
    auto batch = std::move(batches_.front());
    batches_.pop_front();
    bytes_ -= batch->bytes;
    changed_.notify_all();
    return batch;
  }
  void stop() {
    std::lock_guard const lock{mutex_};
    stopped_ = true;
    changed_.notify_all();
  }

 private:
  Bytes const most_;
  std::mutex mutex_;  ///< guards all members below, and `taken` and `done` of batches
  std::condition_variable changed_;
  std::deque<std::unique_ptr<Batch>> batches_;
  Bytes bytes_{};
  bool ended_{};
  bool stopped_{};
  std::exception_ptr error_;
};

/// The documents of a text. They are counted, and their checksum is computed.
class Source {
 public:
  Source(Task const& task, Text const& text, std::size_t index)
      : stream_{open_text(task, text)}, documents_{*stream_, text.documents}, index_{index} {}

  [[nodiscard]] bool next(data::TextDocuments::Document& document) {
    if (!documents_.next(document)) {
      return false;
    }
    ++count_;
    checksum_.add(std::as_bytes(std::span{document.text}));
    checksum_.add(std::as_bytes(std::span{document.end}));
    return true;
  }
  /// Reads up to a place that an earlier pack reached.
  void skip_to(Place const& place) {
    data::TextDocuments::Document document;
    while (count_ < place.documents && next(document)) {
    }
    if (count_ < place.documents || (count_ > 0 && checksum_.value() != place.checksum)) {
      stream_->file().fail(fmt::format(
          "its first {} documents are not those that were packed before; give back the file as it "
          "was, or remove the .part files to begin anew",
          place.documents));
    }
  }

  [[nodiscard]] Place place() const { return {index_, count_, checksum_.value()}; }
  [[nodiscard]] Bytes done() const { return stream_->done(); }

 private:
  std::unique_ptr<data::ByteStream> stream_;
  data::TextDocuments documents_;
  data::RunningChecksum checksum_;
  std::size_t index_;
  std::int64_t count_{};
};

/// Reads a text. Returns false if nobody wants it any more.
bool read_text(Text const& text, Source& source, Bytes before, Line& line) {
  bool more = true;
  while (more) {
    auto batch = std::make_unique<Batch>();
    batch->text = &text;
    batch->first_line = source.place().documents + 1;
    data::TextDocuments::Document document;
    while (batch->bytes < batch_bytes && batch->documents.size() < batch_documents &&
           (more = source.next(document))) {
      batch->bytes += static_cast<Bytes>(document.text.size() + document.end.size());
      batch->documents.push_back(std::move(document));
    }
    batch->behind = more ? source.place() : Place{source.place().text + 1};
    batch->read_so_far = before + source.done();
    if (!line.put(std::move(batch))) {
      return false;
    }
  }
  return true;
}

void read_all(Task const& task, Place const& begin, Line& line) {
  try {
    Bytes before = 0;
    for (std::size_t i = 0; i < task.texts.size(); ++i) {
      Text const& text = task.texts[i];
      if (i >= begin.text) {
        Source source{task, text, i};
        if (i == begin.text) {
          source.skip_to(begin);
        }
        if (!read_text(text, source, before, line)) {
          return;
        }
      }
      before += data::InputFile{text.path, task.key}.size();
    }
    line.end(nullptr);
  } catch (...) {
    line.end(std::current_exception());
  }
}

void encode_all(Task const& task, data::Tokenizer const& tokenizer, Line& line) {
  std::unique_ptr<Worker> worker;
  while (Batch* const batch = line.take()) {
    try {
      if (!worker) {
        worker = std::make_unique<Worker>(task, tokenizer);
      }
      worker->run(*batch);
    } catch (...) {
      batch->error = std::current_exception();
    }
    line.finish(*batch);
  }
}

void write_batch(Batch const& batch, data::TokenWriter& writer) {
  std::size_t begin = 0;
  for (std::size_t const end : batch.ends) {
    auto const mask = std::span{batch.mask};
    writer.write(std::span{batch.tokens}.subspan(begin, end - begin),
                 mask.empty() ? mask : mask.subspan(begin, end - begin));
    writer.end_document();
    begin = end;
  }
}

void add(Conversations const& batch, Conversations& all) {
  all.counted += batch.counted;
  notice(batch.without.count, batch.without.first, all.without);
  all.too_long += batch.too_long;
  all.straddling += batch.straddling;
  for (auto const& [name, count] : batch.unused) {
    add_unused(name, count, all);
  }
}

/// Errors: DataError for more bad lines than may be.
void add_bad(Noticed const& batch, std::int64_t most, Noticed& all) {
  notice(batch.count, batch.first, all);
  if (all.count > most) {
    throw DataError{most == 0
                        ? fmt::format("{}; --skip-bad=N leaves out up to N such lines", all.first)
                        : fmt::format("more than {} lines are bad (--skip-bad); the first: {}",
                                      most, all.first)};
  }
}

/// Owns the threads, so that they end before the objects that they use.
class Threads {
 public:
  Threads(Task const& task, data::Tokenizer const& tokenizer, Place const& begin, Line& line)
      : line_{line} {
    try {
      threads_.emplace_back("pack read", [&] { read_all(task, begin, line); });
      for (int i = 0; i < task.threads; ++i) {
        threads_.emplace_back("pack encode", [&] { encode_all(task, tokenizer, line); });
      }
    } catch (...) {
      line_.stop();
      throw;
    }
  }
  ~Threads() { line_.stop(); }
  Threads(Threads const&) = delete;
  Threads& operator=(Threads const&) = delete;

 private:
  Line& line_;
  std::deque<NamedThread> threads_;
};

}  // namespace

std::unique_ptr<data::ByteStream> open_text(Task const& task, Text const& text) {
  if (text.documents == data::Documents::json && parquet::is_table(text.path, task.key)) {
    return parquet::open_rows(text.path, task.key,
                              task.form != nullptr ? std::nullopt : std::optional{task.field});
  }
  return data::open_stream(text.path, task.key);
}

Progress pack(Task const& task, data::Tokenizer const& tokenizer, data::TokenWriter& writer,
              Progress const& begin, std::function<void(Progress const&)> const& on_progress,
              std::function<void(Progress const&)> const& on_wait) {
  Progress progress = begin;
  progress.total = 0;
  for (Text const& text : task.texts) {
    // An error shows before hours of work on other texts.
    progress.total += data::InputFile{text.path, task.key}.size();
  }
  Line line{task.threads * bytes_per_thread};
  Threads const threads{task, tokenizer, begin.place, line};
  while (auto const batch = line.get([&] { on_wait(progress); })) {
    if (batch->error) {
      std::rethrow_exception(batch->error);
    }
    add_bad(batch->bad, task.most_bad, progress.bad);
    write_batch(*batch, writer);
    progress.place = batch->behind;
    progress.read = batch->read_so_far;
    progress.text += batch->bytes;
    progress.encoded += batch->encoded;
    add(batch->conversations, progress.conversations);
    notice(batch->replaced.count, batch->replaced.first, progress.replaced);
    notice(batch->specials.count, batch->specials.first, progress.specials);
    on_progress(progress);
  }
  return progress;
}

}  // namespace offstage::pack
