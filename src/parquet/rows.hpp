#pragma once

#include <memory>
#include <optional>
#include <string>

#include "data/byte_stream.hpp"

namespace offstage::parquet {

/// True if the file begins as a Parquet table. Errors: those of InputFile.
[[nodiscard]] bool is_table(std::string const& path, std::string const& key);

/// The rows of a Parquet table as JSON lines, one object each, with lists as arrays, groups as
/// objects, and null for what is null or has a type that JSON lacks. `column` is the only field of
/// the objects; nullopt: all are, and bytes that are not said to be text become null.
/// Threads: one.
/// Memory:  a page of each column, with its dictionary, and a row.
/// Errors:  DataError naming the file: no such column (naming those that it has); damaged,
///          encrypted or written in a way that is not read (naming it), at once or where it is
///          read; those of InputFile.
[[nodiscard]] std::unique_ptr<data::ByteStream> open_rows(std::string const& path,
                                                          std::string const& key,
                                                          std::optional<std::string> const& column);

}  // namespace offstage::parquet
