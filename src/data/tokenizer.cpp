#include "data/tokenizer.hpp"
