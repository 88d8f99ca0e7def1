#include "launch/launcher.hpp"
