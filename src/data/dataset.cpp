#include "data/dataset.hpp"
