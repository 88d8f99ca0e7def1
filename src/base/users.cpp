#include "base/users.hpp"

#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>

namespace offstage {

std::string words_for_user(uid_t user) {
  std::array<char, 4096> room{};
  passwd entry{};
  passwd* found = nullptr;
  std::string number = "user " + std::to_string(user);
  if (::getpwuid_r(user, &entry, room.data(), room.size(), &found) == 0 && found != nullptr) {
    return std::string{found->pw_name} + " (" + number + ")";
  }
  return number;
}

std::string foreign_words(std::string const& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0 || status.st_uid == ::geteuid()) {
    return "";
  }
  return "; it belongs to " + words_for_user(status.st_uid);
}

}  // namespace offstage
