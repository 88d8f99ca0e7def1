#pragma once

#include "tiers/tiers.hpp"

namespace offstage::update {

/// Receiver of gradients as they become final.
class FinalGradients {
 public:
  virtual ~FinalGradients() = default;
  /// Tells that the subgroup's gradient can be fetched, and that nobody needs its old parameters.
  /// `squares`: sum over its elements if known, else 0. Threads: any.
  virtual void complete(tiers::Key subgroup, double squares) = 0;

 protected:
  FinalGradients() = default;
  FinalGradients(FinalGradients const&) = default;
  FinalGradients& operator=(FinalGradients const&) = default;
};

}  // namespace offstage::update
