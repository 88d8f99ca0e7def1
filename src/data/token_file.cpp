#include "data/token_file.hpp"
