#include "tiers/path_settings.hpp"
