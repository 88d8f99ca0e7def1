#include "tiers/throttle.hpp"
