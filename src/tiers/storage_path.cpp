#include "tiers/storage_path.hpp"
