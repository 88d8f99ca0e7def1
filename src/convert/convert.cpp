#include "convert/convert.hpp"
