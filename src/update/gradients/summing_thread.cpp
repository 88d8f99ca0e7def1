#include "update/gradients/summing_thread.hpp"

#include <utility>

#include "base/team.hpp"
#include "base/watch.hpp"

namespace offstage::update {

SummingThread::SummingThread(Add add, std::function<void()> fail)
    : OrderedThread{{"gradient sums", "gradients to add", "gradients to be added"},
                    [add = std::move(add), fail = std::move(fail), team = team_size(),
                     made = false](GradientArrival arrival) mutable {
                      try {
                        if (!made) {
                          set_team_size(team);
                          made = true;
                        }
                        auto const gradient = arrival.wait();
                        Waiting const busy{"the sums of gradients, of layer", arrival.layer()};
                        add(arrival.layer(), gradient);
                      } catch (...) {
                        fail();
                        throw;
                      }
                    }} {}

}  // namespace offstage::update
