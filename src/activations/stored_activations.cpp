#include "activations/stored_activations.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <ranges>

#include "activations/parts.hpp"
#include "base/error.hpp"
#include "base/watch.hpp"

namespace offstage::activations {

std::vector<Bytes> StoredActivations::extents(std::span<state::LeavingPart const> parts) {
  require(std::ranges::is_sorted(parts, {}, &state::LeavingPart::block),
          "StoredActivations: parts come block by block, ascending");
  std::vector<Bytes> sizes;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i == 0 || parts[i].block != parts[i - 1].block) {
      sizes.push_back(0);
    }
    sizes.back() += round_up(parts[i].bytes, part_alignment);
  }
  return sizes;
}

StoredActivations::StoredActivations(std::span<state::LeavingPart const> parts, tiers::Tiers& tiers,
                                     device::Device& device, StoredSettings const& settings)
    : tiers_{tiers}, on_demand_{settings.on_demand} {
  std::map<int, Bytes> used;
  for (state::LeavingPart const& part : parts) {
    Bytes& offset = used[part.block];
    blocks_[part.block].parts[part.part] = {offset, part.bytes};
    offset += round_up(part.bytes, part_alignment);
  }
  for (tiers::Key key = 0; auto& [block, of] : blocks_) {
    of.key = key++;
  }
  ended_.resize(blocks_.size());
  try {
    auto const start = [&](Queue& queue, bool out, int count) {
      for (int i = 0; i < count; ++i) {
        auto const name = fmt::format("act-{}-{}", out ? "out" : "back", i);
        auto& stream = *streams_.emplace_back(device.make_stream(name));
        threads_.emplace_back(name, [this, &queue, &stream, out] { work(queue, stream, out); });
      }
    };
    start(out_, true, settings.writers);
    start(back_, false, settings.readers);
  } catch (...) {  // those that have started wait for what is to come
    stop();
    throw;
  }
}

StoredActivations::~StoredActivations() {
  stop();
}

void StoredActivations::stop() noexcept {
  {
    std::scoped_lock const lock{mutex_};
    stopping_ = true;
  }
  changed_.notify_all();
  threads_.clear();
}

void StoredActivations::open() {
  std::unique_lock lock{mutex_};
  back_.waiting.clear();
  for (auto const* const queue : {&out_, &back_}) {
    for (auto const& passage : queue->at_work) {
      passage->cancelled = true;
    }
    for (auto const& passage : queue->waiting) {
      passage->cancelled = true;
    }
  }
  changed_.notify_all();
  {
    Waiting const waiting{"activations of the micro-batch before"};
    changed_.wait(lock, [this] {
      return error_ || (out_.waiting.empty() && out_.at_work.empty() && back_.at_work.empty());
    });
  }
  if (error_) {
    std::rethrow_exception(error_);
  }
  left_to_put_ = 0;
  for (auto& [block, of] : blocks_) {
    of.passage = nullptr;
    of.begun = 0;
    left_to_put_ += of.parts.size();
  }
  ended_.assign(ended_.size(), 0);
  tiers_.begin_pass();
}

std::shared_ptr<device::Event> StoredActivations::put(int block, int part,
                                                      std::span<std::byte const> memory,
                                                      std::shared_ptr<device::Event> const& made) {
  std::scoped_lock const lock{mutex_};
  auto const found = blocks_.find(block);
  require(found != blocks_.end() && (on_demand_ || left_to_put_ > 0),
          "StoredActivations: a part that is not one of those that leave");
  Block& of = found->second;
  if (!of.passage || on_demand_) {
    begin_passage(of, out_);
  }
  // The copy reads it alone.
  std::span const bytes{const_cast<std::byte*>(memory.data()), memory.size()};
  auto point = tell(block, part, bytes, made);
  put_ += std::ssize(memory);
  if (!on_demand_ && --left_to_put_ == 0) {
    begin_readers();
  }
  return point;
}

// All are told; those of the last blocks may be read already while those of others are written.
void StoredActivations::begin_readers() {
  for (auto& [block, of] : blocks_ | std::views::reverse) {
    begin_passage(of, back_);
  }
}

void StoredActivations::begin_passage(Block& block, Queue& queue) {
  block.passage = std::make_shared<Passage>();
  block.passage->key = block.key;
  block.passage->number = block.begun++;
  block.passage->parts = on_demand_ ? 1 : block.parts.size();
  queue.waiting.push_back(block.passage);
}

std::shared_ptr<device::Event> StoredActivations::take(
    int block, int part, std::span<std::byte> memory, std::shared_ptr<device::Event> const& freed) {
  std::scoped_lock const lock{mutex_};
  auto const found = blocks_.find(block);
  bool const put = found != blocks_.end() && found->second.passage != nullptr;
  require(on_demand_ ? put : left_to_put_ == 0,
          "StoredActivations: what was not put cannot be taken");
  if (on_demand_) {
    begin_passage(found->second, back_);
  }
  auto point = tell(block, part, memory, freed);
  taken_ += std::ssize(memory);
  return point;
}

state::ActivationTraffic StoredActivations::traffic() const {
  std::scoped_lock const lock{mutex_};
  return {.out = put_, .back = taken_, .waited = *waited_};
}

std::shared_ptr<device::Event> StoredActivations::tell(int block, int part,
                                                       std::span<std::byte> memory,
                                                       Point const& after) {
  if (error_) {
    std::rethrow_exception(error_);
  }
  auto const of = blocks_.find(block);
  require(of != blocks_.end() && of->second.passage,
          "StoredActivations: a block that is not there");
  auto const place = of->second.parts.find(part);
  require(place != of->second.parts.end() && std::ssize(memory) == place->second.second,
          "StoredActivations: a part that is not one of those that leave");
  auto& move = of->second.passage->moves.emplace_back(
      Move{.memory = memory, .after = after, .offset = place->second.first, .queued = {}});
  changed_.notify_all();
  return std::make_shared<state::LatePoint>(move.queued.get_future().share(), waited_);
}

void StoredActivations::work(Queue& queue, device::Stream& stream, bool out) noexcept {
  std::unique_lock lock{mutex_};
  for (;;) {
    {
      Waiting const idle{"activations to move"};
      changed_.wait(lock, [&] { return stopping_ || !queue.waiting.empty(); });
    }
    if (stopping_) {
      return;
    }
    auto const passage = std::move(queue.waiting.front());
    queue.waiting.pop_front();
    queue.at_work.push_back(passage);
    lock.unlock();
    try {
      out ? write(*passage, stream) : read(*passage, stream);
    } catch (Cancelled const&) {
      fail(std::make_exception_ptr(PreconditionError{"activations that nobody wants any more"}),
           *passage);
    } catch (...) {
      {
        // First, so that nobody adds a move to the passage once its moves have failed.
        std::scoped_lock const now{mutex_};
        error_ = error_ ? error_ : std::current_exception();
      }
      fail(std::current_exception(), *passage);
    }
    lock.lock();
    std::erase(queue.at_work, passage);
    ++ended_[static_cast<std::size_t>(passage->key)];
    changed_.notify_all();
  }
}

void StoredActivations::fail(std::exception_ptr const& error, Passage& passage) noexcept {
  std::scoped_lock const lock{mutex_};
  for (Move& move : passage.moves) {
    try {
      move.queued.set_exception(error);
    } catch (std::future_error const&) {  // it was queued
    }
  }
}

void StoredActivations::wait_for_turn(Passage const& passage, bool out) {
  std::unique_lock lock{mutex_};
  Waiting const waiting{"activations to be moved before", passage.key};
  changed_.wait(lock, [&] {
    return stopping_ || ended_[static_cast<std::size_t>(passage.key)] == passage.number ||
           (!out && (passage.cancelled || error_));
  });
  if (!out && error_) {
    std::rethrow_exception(error_);
  }
  if (stopping_ || (!out && passage.cancelled)) {
    throw Cancelled{};
  }
}

void StoredActivations::write(Passage& passage, device::Stream& stream) {
  wait_for_turn(passage, true);
  tiers::Lease lease = tiers_.create(passage.key);
  copy_parts(passage, stream, lease.mutable_bytes().data(), true);
  stream.synchronize();
  lease.commit();
}

void StoredActivations::read(Passage& passage, device::Stream& stream) {
  wait_for_turn(passage, false);
  tiers::Lease const lease = tiers_.fetch(passage.key);
  // The copy reads it alone.
  copy_parts(passage, stream, const_cast<std::byte*>(lease.bytes().data()), false);
  stream.synchronize();
}

void StoredActivations::copy_parts(Passage& passage, device::Stream& stream, std::byte* extent,
                                   bool out) {
  std::unique_lock lock{mutex_};
  for (std::size_t i = 0; i < passage.parts; ++i) {
    {
      Waiting const waiting{"the model to come to activations", passage.key};
      changed_.wait(lock,
                    [&] { return stopping_ || passage.cancelled || passage.moves.size() > i; });
    }
    if (passage.moves.size() <= i) {
      throw Cancelled{};
    }
    Move& move = passage.moves[i];  // stays where it is
    lock.unlock();
    state::queue_behind(stream, *move.after);
    std::byte* const host = extent + move.offset;
    for (Bytes done = 0; done < std::ssize(move.memory); done += most_at_a_time) {
      Bytes const size = std::min(most_at_a_time, std::ssize(move.memory) - done);
      std::byte* const there = move.memory.data() + done;
      stream.copy(out ? host + done : there, out ? there : host + done, size,
                  out ? device::Copy::device_to_host : device::Copy::host_to_device);
    }
    move.queued.set_value(stream.record());
    lock.lock();
  }
}

}  // namespace offstage::activations
