#include "huggingface/safetensors.hpp"
