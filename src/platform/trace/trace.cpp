#include "platform/trace/trace.hpp"
