#include "plan/split.hpp"
