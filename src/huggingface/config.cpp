#include "huggingface/config.hpp"
