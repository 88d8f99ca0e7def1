#include "plan/order.hpp"
