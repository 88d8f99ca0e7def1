#include "tiers/tiers.hpp"
