#include "huggingface/torch_archive.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.hpp"
#include "huggingface/state_dict.hpp"
#include "huggingface/tensor_file.hpp"
#include "huggingface/torch_sample.hpp"
#include "temporary_directory.hpp"

namespace offstage::huggingface {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::string const name = pickled(std::string{"a"});

std::string refusal(std::string const& pickle) {
  return message_of<DataError>([&] { (void)read_state_dict(pickle, "the-file"); });
}

TEST(StateDict, GivesTensorsAndTheirPlaces) {
  TorchTensor const part{.type = "torch\nBFloat16Storage",
                         .record = "7",
                         .elements = 100,
                         .first = 40,
                         .shape = {3, 1, 4},
                         .strides = {4, 99, 1}};
  auto const tensors = read_state_dict(
      state_dict(name + pickled(TorchTensor{}) + pickled(std::string{"b"}) + pickled(part)), "x");
  ASSERT_EQ(tensors.size(), 2U);
  EXPECT_EQ(tensors.at("a").dtype, "F32");
  EXPECT_EQ(tensors.at("a").record, "0");
  EXPECT_THAT(tensors.at("a").shape, ElementsAre(2, 2));
  EXPECT_EQ(tensors.at("b").dtype, "BF16");
  EXPECT_EQ(tensors.at("b").record, "7");
  EXPECT_EQ(tensors.at("b").first, 40);
  EXPECT_THAT(tensors.at("b").shape, ElementsAre(3, 1, 4));
}

TEST(StateDict, TakesTheStepsOfNewerPickles) {
  // Protocol 4 has a frame, short texts, functions on the stack and values that are numbered as
  // they come; this one has a parameter around a tensor and attributes of the dictionary, too.
  auto const short_text = [](std::string const& text) {
    return "\x8c" + std::string(1, static_cast<char>(text.size())) + text + "\x94";
  };
  auto const function = [&](std::string const& module, std::string const& called) {
    return short_text(module) + short_text(called) + "\x93\x94";
  };
  auto const tensors = read_state_dict(
      "\x80\x04\x95" + std::string(8, '\0') + function("collections", "OrderedDict") + ")R\x94(" +
          short_text("a") + function("torch._utils", "_rebuild_parameter") +
          pickled(TorchTensor{}) + "\x89N\x87R" + short_text("b") + pickled(TorchTensor{}) + "u}" +
          "h\x03M\x01\x02sb.",
      "x");
  EXPECT_EQ(tensors.size(), 2U);
  EXPECT_THAT(tensors.at("a").shape, ElementsAre(2, 2));
}

TEST(StateDict, HasPlacesBeyondThirtyTwoBits) {
  std::string const elements =
      "\x8a\x05" + bytes_of<std::int64_t>({std::int64_t{1} << 33}).substr(0, 5);
  std::string const first =
      "\x8a\x05" + bytes_of<std::int64_t>({std::int64_t{3} << 31}).substr(0, 5);
  std::string tensor = pickled(TorchTensor{.elements = 77, .first = 78});
  tensor.replace(tensor.find(pickled(77)), 5, elements);
  tensor.replace(tensor.find(pickled(78)), 5, first);
  auto const read = read_state_dict(state_dict(name + tensor), "x").at("a");
  EXPECT_EQ(read.first, std::int64_t{3} << 31);
}

TEST(StateDict, HasABoundForTensorsAlsoWhereOneHasManyNames) {
  std::string const tensor = pickled(TorchTensor{}) + "q\x01";
  std::string const parameter = "ctorch._utils\n_rebuild_parameter\nq\x02";
  std::string names;
  for (std::int32_t i = 0; i <= 200'000; ++i) {
    names += pickled(std::to_string(i)) + (i % 2 == 0 ? "h\x01" : "h\x02h\x01\x85R");
  }
  EXPECT_THAT(refusal("\x80\x02" + tensor + parameter + "}(" + names + "u."),
              HasSubstr("has more than 200000 tensors"));
  std::string many = "\x80\x02((" + pickled(std::string{"storage"}) + "ctorch\nFloatStorage\n" +
                     pickled(std::string{"0"}) + pickled(std::string{"cpu"}) + pickled(1) + "tQ" +
                     pickled(0) + "))tq\x01" + "ctorch._utils\n_rebuild_tensor_v2\nq\x02";
  for (int i = 0; i <= 200'000; ++i) {
    many += "h\x02h\x01R";
  }
  EXPECT_THAT(refusal(many), HasSubstr("makes more than 200000 tensors"));
}

TEST(StateDict, NamesWhatIsNoTensor) {
  std::string const extra = pickled(std::string{"extra"});
  for (std::string const value : {"N", "\x88", "G12345678", "](K\1K\2e", "]K\1a", ")"}) {
    EXPECT_THAT(refusal(state_dict(extra + value)), HasSubstr("has 'extra', which is no tensor"));
  }
  EXPECT_THAT(refusal(state_dict("K\1" + pickled(TorchTensor{}))), HasSubstr("which is no tensor"));
}

TEST(StateDict, RunsNothingAndNamesWhatIsWrong) {
  auto const refused_as = [](TorchTensor const& tensor) {
    return refusal(state_dict(name + pickled(tensor)));
  };
  std::string const good = state_dict(name + pickled(TorchTensor{}));
  EXPECT_THAT(refusal("cos\nsystem\n(" + pickled(std::string{"touch x"}) + "tR."),
              HasSubstr("the-file: its pickle calls os.system, which is not run"));
  EXPECT_THAT(refusal(state_dict(pickled(std::string{"model"}) + "}")),
              HasSubstr("has 'model', which is no tensor: a state_dict of tensors alone is read"));
  EXPECT_THAT(refusal(state_dict(name + pickled(TorchTensor{}) + name + pickled(TorchTensor{}))),
              HasSubstr("has the tensor 'a' twice"));
  EXPECT_THAT(refused_as({.strides = {1, 2}}), HasSubstr("transposed or strided"));
  EXPECT_THAT(refused_as({.strides = {1}}),
              HasSubstr("has the tensor 'a' of [2, 2], which has another number of strides"));
  for (TorchTensor const& beyond :
       {TorchTensor{.elements = 3}, TorchTensor{.shape = {-2, 2}}, TorchTensor{.first = 1},
        TorchTensor{.first = -1}, TorchTensor{.elements = -5, .shape = {}, .strides = {}}}) {
    EXPECT_THAT(refused_as(beyond), HasSubstr("which its storage cannot hold"));
  }
  EXPECT_THAT(refused_as({.elements = 0, .shape = {0}, .strides = {1}}),
              HasSubstr("'a' of [0], which has no elements: where ZeRO-3 keeps them elsewhere"));
  std::string negated = pickled(TorchTensor{});
  negated.replace(negated.find("}tR"), 3, "}}" + pickled(std::string{"neg"}) + "\x88stR");
  EXPECT_THAT(refusal(state_dict(name + negated)), HasSubstr("save it with .resolve_neg()"));
  EXPECT_THAT(refused_as({.type = "torch\nQInt8Storage"}),
              HasSubstr("a storage of the type torch.QInt8Storage, which is not known"));
  EXPECT_THAT(refusal("N."), HasSubstr("something else where a dictionary of tensors belongs"));
  EXPECT_THAT(refusal("."), HasSubstr("takes a value that it did not put there"));
  EXPECT_THAT(refusal("(u."), HasSubstr("takes a value that it did not put there"));
  EXPECT_THAT(refusal("h\x09."), HasSubstr("recalls a value that it did not keep"));
  EXPECT_THAT(refusal("}(Nu."), HasSubstr("a key without a value"));
  EXPECT_THAT(refusal("\x8a\x09" + std::string(9, '\1')), HasSubstr("more than 64 bits"));
  EXPECT_THAT(refusal("I01\n."), AllOf(HasSubstr("has the byte 0x49 at 0"),
                                       HasSubstr("a state_dict of tensors alone is read")));
  EXPECT_THAT(refusal(std::string(2'000'001, 'N')), HasSubstr("makes more than 2000000 values"));
  EXPECT_THAT(refusal("N" + std::string(2'000'001, '\x94')), HasSubstr("keeps more than 2000000"));
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_THAT(refusal(good.substr(0, size)), HasSubstr("the-file: its pickle ")) << size;
  }
}

class TorchFile : public testing::Test {
 protected:
  std::string write(std::string const& bytes) { return folder_.write("x.bin", bytes); }
  std::string refused(std::string const& bytes) {
    return message_of<DataError>([&] { TensorFile const file{write(bytes)}; });
  }

  TemporaryDirectory folder_;
  std::string const pickle_ = state_dict(
      name + pickled(TorchTensor{}) + pickled(std::string{"half"}) +
      pickled(TorchTensor{.type = "torch\nHalfStorage", .first = 1, .shape = {3}, .strides = {1}}));
  std::string const numbers_ = bytes_of<float>({1, 2, 3, 4});
};

TEST_F(TorchFile, GivesNumbersWhereverItsDirectoryStands) {
  auto records = torch_records(pickle_, numbers_);
  for (bool const wide : {false, true}) {
    for (std::string const comment : {"", "PK, a comment"}) {
      std::string bytes = archive(records, wide);
      bytes[bytes.size() - 2] = static_cast<char>(comment.size());
      TensorFile const file{write(bytes + comment)};
      std::vector<float> read(4);
      file.read(file.tensors().at("a"), 0, read);
      EXPECT_THAT(read, ElementsAre(1, 2, 3, 4));
      read.resize(3);
      file.read(file.tensors().at("half"), 0, read);  // the halves of 1.0F and the first of 2.0F
      EXPECT_THAT(read, ElementsAre(1.875F, 0, 2));
    }
  }
}

TEST_F(TorchFile, IsRefusedWithWhatIsWrong) {
  auto const changed = [&](std::size_t record, std::string const& file, std::string const& bytes) {
    auto records = torch_records(pickle_, numbers_);
    records[record] = {file, bytes};
    return refused(archive(records));
  };
  EXPECT_THAT(changed(0, "m/other.pkl", pickle_), HasSubstr("no file of torch.save"));
  EXPECT_THAT(changed(0, "m/n/data.pkl", pickle_), HasSubstr("no file of torch.save"));
  EXPECT_THAT(refused(""), HasSubstr("is no file of torch.save, or is cut short"));
  EXPECT_THAT(changed(1, "m/byteorder", "big"), HasSubstr("a big-endian machine"));
  EXPECT_THAT(changed(2, "m/data/1", numbers_), HasSubstr("has no record 'm/data/0'"));
  EXPECT_THAT(changed(2, "m/data/0", numbers_.substr(4)),
              HasSubstr("tensor 'a', F32 [2, 2], lies beyond the 12 B of its record '0'"));
  EXPECT_THAT(changed(1, "m/data/0", numbers_), HasSubstr("it has 'm/data/0' twice"));
  auto const records = torch_records(pickle_, numbers_);
  EXPECT_THAT(refused(archive(records, false, 8)), HasSubstr("'m/data.pkl' compressed"));
  EXPECT_THAT(refused("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9 and so on"),
              HasSubstr("before PyTorch 1.6"));
}

TEST_F(TorchFile, IsRefusedWhereverItIsCutOrChanged) {
  for (bool const wide : {false, true}) {
    std::string const good = archive(torch_records(pickle_, numbers_), wide);
    for (std::size_t size = 0; size < good.size(); ++size) {
      EXPECT_THAT(refused(good.substr(0, size)), HasSubstr("x.bin: ")) << size;
    }
    // Whatever a byte of the directory becomes: tensors lie inside the file, or it is refused.
    for (std::size_t at = good.find("PK\1\2"); at < good.size(); ++at) {
      for (char const byte : {'\0', '\1', '\x7f', '\xff'}) {
        std::string bytes = good;
        bytes[at] = byte;
        try {
          TensorFile const file{write(bytes)};
          for (auto const& [key, tensor] : file.tensors()) {
            EXPECT_GE(tensor.begin, 0) << at;
            EXPECT_LE(tensor.end, static_cast<Bytes>(bytes.size())) << at;
          }
        } catch (DataError const&) {
        }
      }
    }
  }
}

}  // namespace
}  // namespace offstage::huggingface
