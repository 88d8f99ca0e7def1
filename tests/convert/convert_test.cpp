#include "convert/convert.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "base/chunk.hpp"
#include "base/error.hpp"
#include "checkpoint/directory.hpp"
#include "checkpoint/store.hpp"
#include "convert/parameter_tiers.hpp"
#include "huggingface/model_directory.hpp"
#include "temporary_directory.hpp"

namespace offstage::convert {
namespace {

namespace fs = std::filesystem;
using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;

state::ModelShape small() {
  return {.family = state::Family::gpt2,
          .layers = 2,
          .hidden = 24,
          .heads = 2,
          .kv_heads = 2,
          .ffn_hidden = 96,
          .vocab = 400,
          .max_sequence = 16,
          .tied_head = true};
}

float value_at(int layer, std::int64_t element) {
  return static_cast<float>(element) + 0.25F * static_cast<float>(layer);
}

/// Numbers that tell where they belong.
class Counting final : public state::ParameterReader {
 public:
  [[nodiscard]] state::ModelShape const& shape() const override { return shape_; }
  void read(int layer, state::ChunkRange chunks, std::span<float> out) override {
    std::int64_t const elements = layers_.at(static_cast<std::size_t>(layer)).elements;
    for (std::size_t i = 0; i < out.size(); ++i) {
      std::int64_t const element = chunks.first * chunk_elements + static_cast<std::int64_t>(i);
      out[i] = element < elements ? value_at(layer, element) : 0.0F;
    }
  }

 private:
  state::ModelShape shape_ = small();
  std::vector<state::LayerLayout> layers_ = state::layers_of(shape_);
};

TEST(ParameterTiers, MakeStateOfParametersAndZeroMoments) {
  Counting reader;
  state::ShardMap const map{state::layers_of(small()), 1};
  auto const subgroups = state::subgroups_of(map, 0, 3 * chunk_elements);
  ParameterTiers tiers{reader, subgroups};
  for (state::Subgroup const& subgroup : subgroups) {
    tiers::Lease const lease = tiers.fetch(subgroup.index);
    ASSERT_EQ(static_cast<Bytes>(lease.bytes().size()), 12 * subgroup.size);
    std::span const state{reinterpret_cast<float const*>(lease.bytes().data()),
                          static_cast<std::size_t>(3 * subgroup.size)};
    std::vector<float> expected(state.size(), 0.0F);
    read_pieces(reader, subgroup, std::span{expected}.first(state.size() / 3));
    EXPECT_TRUE(std::ranges::equal(state, expected));
  }
  EXPECT_EQ(tiers.host_bytes(), 12 * 3 * chunk_elements);
  EXPECT_THROW((void)tiers.create(0), PreconditionError);
}

class Convert : public testing::Test {
 protected:
  Convert() {
    huggingface::ModelWriter writer{path("model"), small(), DType::fp32, GiB};
    writer.create();
    auto const layers = state::layers_of(small());
    Counting reader;
    for (int layer = 0; layer < std::ssize(layers); ++layer) {
      state::ChunkRange const all{0, layers[static_cast<std::size_t>(layer)].chunks()};
      std::vector<float> numbers(static_cast<std::size_t>(all.count * chunk_elements));
      reader.read(layer, all, numbers);
      writer.write(layer, all, numbers);
    }
    writer.sync();
    writer.commit();
  }

  [[nodiscard]] std::string path(std::string const& name) const { return folder.path() / name; }

  template <class Expected, class Action>
  static std::string message_of(Action&& action) {
    try {
      action();
    } catch (Expected const& error) {
      return error.what();
    }
    ADD_FAILURE() << "no error";
    return "";
  }

  TemporaryDirectory folder;
  mpi::Communicator self = mpi::Communicator::self();
};

TEST_F(Convert, OpensParametersOfAModelACheckpointAndDirectoriesOfThem) {
  Converted const done = import_model(path("model"), path("run/checkpoints"), self);
  auto const layers = state::layers_of(small());
  EXPECT_EQ(done.parameters, state::count_parameters(layers));
  EXPECT_EQ(done.path, path("run/checkpoints/step-000000000"));
  for (std::string const& source :
       {path("model"), done.path, path("run/checkpoints"), path("run")}) {
    auto const reader = open_parameters(source, "train.init-from");
    EXPECT_EQ(reader->shape(), small());
    for (int layer = 0; layer < std::ssize(layers); ++layer) {
      std::int64_t const chunks = layers[static_cast<std::size_t>(layer)].chunks();
      Counting counting;
      std::vector<float> expected(static_cast<std::size_t>(chunks * chunk_elements));
      counting.read(layer, {0, chunks}, expected);
      // Two alignments: one for direct I/O at best, one never.
      for (std::size_t const shift : {0U, 1U}) {
        std::vector<float> room(expected.size() + shift, 9.0F);
        std::span const read = std::span{room}.subspan(shift);
        reader->read(layer, {0, chunks}, read);
        EXPECT_TRUE(std::ranges::equal(read, expected)) << source << " " << layer;
      }
    }
  }
}

TEST_F(Convert, ACheckpointThatARunRemovesWhileItIsReadIsSaidToBeGone) {
  Converted const done = import_model(path("model"), path("run/checkpoints"), self);
  auto const reader = open_parameters(done.path, "--from");
  std::vector<float> room(static_cast<std::size_t>(chunk_elements));
  auto const read = [&] { reader->read(0, {0, 1}, room); };
  std::filesystem::rename(done.path + "/rank-0000.json", path("manifest"));
  EXPECT_THAT(message_of<DataError>(read), Not(HasSubstr("was removed while it was read")));
  checkpoint::remove_checkpoint(done.path);
  EXPECT_THAT(message_of<DataError>(read), HasSubstr("was removed while it was read"));
}

TEST_F(Convert, AnImportIsACheckpointOfStepZero) {
  Converted const done = import_model(path("model"), path("c"), self);
  auto const listed = checkpoint::list(path("c"));
  ASSERT_EQ(listed.size(), 1U);
  EXPECT_EQ(listed[0].state, checkpoint::Completeness::complete);
  EXPECT_EQ(listed[0].meta.step, 0);
  EXPECT_EQ(listed[0].meta.samples, 0);
  EXPECT_EQ(listed[0].meta.model, small());
  EXPECT_THAT(listed[0].meta.configuration, HasSubstr("model.family=gpt2\n"));
  EXPECT_TRUE(checkpoint::verify(listed[0]).empty());
}

TEST_F(Convert, AnImportTakesTheDirectoryOfOneThatWasKilledAndNoOther) {
  fs::create_directories(path("c/step-000000000"));
  (void)import_model(path("model"), path("c"), self);
  try {
    (void)import_model(path("model"), path("c"), self);
    FAIL() << "no error";
  } catch (mpi::AgreedError const& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    EXPECT_THAT(error.what(), HasSubstr("holds checkpoints already (step-000000000)"));
  }
}

TEST_F(Convert, APathWithoutAModelIsRefusedWithItsKey) {
  auto const refusal = [&](std::string const& name) {
    return message_of<DataError>([&] { (void)open_parameters(path(name), "train.init-from"); });
  };
  fs::create_directories(path("empty"));
  fs::create_directories(path("unfinished/step-000000003"));
  EXPECT_THAT(refusal("none"), HasSubstr("train.init-from=" + path("none") + ": there is no such"));
  EXPECT_THAT(refusal("none"), HasSubstr("hf download ORG/NAME --local-dir DIR"));
  EXPECT_THAT(refusal("empty"), HasSubstr("holds no model"));
  EXPECT_THAT(refusal("unfinished"), HasSubstr("has no complete checkpoint"));
}

TEST_F(Convert, ADirectoryAroundModelsNamesTheLastOne) {
  for (char const* const name : {"tuned/checkpoint-500", "tuned/checkpoint-1500",
                                 "tuned/checkpoint-900", "hub/snapshots/c0de"}) {
    fs::create_directories(path(name));
    fs::copy(path("model/config.json"), path(name));
  }
  fs::create_directories(path("tuned/checkpoint-20000"));
  for (auto const& [name, model] :
       {std::pair{"tuned", "tuned/checkpoint-1500"}, std::pair{"hub", "hub/snapshots/c0de"}}) {
    auto const message =
        message_of<DataError>([&] { (void)open_parameters(path(name), "train.init-from"); });
    EXPECT_THAT(message, HasSubstr("but " + path(model) + " is one"));
  }
}

TEST_F(Convert, AnExportChangesDtypeAndRefusesAnothersPlace) {
  // The largest of these numbers is beyond what 11 bits hold; bf16 rounds it.
  (void)export_model({path("model")}, path("out"), DType::bf16, GiB, {}, self);
  auto const reader = open_parameters(path("out"), "--from");
  std::vector<float> read(chunk_elements);
  reader->read(0, {0, 1}, read);
  EXPECT_EQ(read[255], 255.0F);
  EXPECT_EQ(read[257], to_float(to_bf16(257.0F)));
  EXPECT_THROW((void)export_model({path("model")}, path("out"), DType::fp32, GiB, {}, self),
               mpi::AgreedError);
}

TEST_F(Convert, NothingIsWrittenAmongCheckpointsOrIntoOne) {
  Converted const done = import_model(path("model"), path("run/checkpoints"), self);
  auto const refusal = [](auto&& action) {
    try {
      (void)action();
    } catch (mpi::AgreedError const& error) {
      EXPECT_EQ(error.code(), ExitCode::usage);
      return std::string{error.what()};
    }
    ADD_FAILURE() << "no error";
    return std::string{};
  };
  EXPECT_THAT(refusal([&] { return import_model(path("model"), done.path, self); }),
              HasSubstr("--to=" + done.path + " is a checkpoint"));
  EXPECT_THAT(refusal([&] { return import_model(path("model"), path("run"), self); }),
              HasSubstr("holds checkpoints already (step-000000000)"));
  EXPECT_FALSE(fs::exists(path("run/step-000000000")));
  for (std::string const& to : {path("run"), path("run/checkpoints"), done.path}) {
    EXPECT_THAT(
        refusal([&] { return export_model({path("run")}, to, DType::fp32, GiB, {}, self); }),
        AnyOf(HasSubstr("holds checkpoints already (step-000000000)"),
              HasSubstr("is a checkpoint")))
        << to;
    EXPECT_FALSE(fs::exists(to + "/config.json"));
  }
  (void)export_model({path("run")}, path("run/model"), DType::fp32, GiB, {}, self);
  EXPECT_EQ(resolve_parameters(path("run"), "--from", self), done.path);
}

TEST_F(Convert, AFileIsNoPlaceForAModelOrACheckpoint) {
  auto const file = folder.write("a.txt", "text");
  auto const refusal = [&](auto&& action) {
    return message_of<mpi::AgreedError>([&] { (void)action(); });
  };
  struct Wrong {
    std::string to, words;
  };
  for (Wrong const& wrong : {Wrong{file, file + " is a file; name a directory"},
                             {file + "/in", file + "/in lies in a file"}}) {
    EXPECT_THAT(refusal([&] { return import_model(path("model"), wrong.to, self); }),
                HasSubstr("--to=" + wrong.words));
    EXPECT_THAT(refusal([&] {
                  return export_model({path("model")}, wrong.to, DType::fp32, GiB, {}, self);
                }),
                HasSubstr("--to=" + wrong.words));
  }
}

}  // namespace
}  // namespace offstage::convert
