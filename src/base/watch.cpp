#include "base/watch.hpp"
