#include "launch/placement.hpp"
