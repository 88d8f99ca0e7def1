#include "tiers/node_lock.hpp"
